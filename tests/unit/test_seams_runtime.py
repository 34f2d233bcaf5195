"""Seams of the engine that later parts build on: lazy import, shards, roles, overrides, bytes per token."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engines import Job, Trace, World, jobs, tokens

from tandem.checkpoint.reader import Checkpoint
from tandem.cli.checkpoint import official_config
from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend
from tandem.contract.types import MoEBatch, QFormat, ShardSpec
from tandem.model.caches import CacheSpec, global_bytes_per_token, index_layout, main_layout, window_layout
from tandem.model.config import ModelConfig
from tandem.model.moe import MoE
from tandem.model.registry import build_model
from tandem.model.weights import WeightLoader
from tandem.sampling.params import SamplingParams

# -- importing ---------------------------------------------------------------------------------------------

PROBE = """
import json, os, sys, threading
import torch
before = dict(
    environment=dict(os.environ), threads=torch.get_num_threads(), dtype=str(torch.get_default_dtype()),
    rng=torch.get_rng_state().tolist(), running=threading.active_count(), descriptors=len(os.listdir("/proc/self/fd")),
)
modules = set(sys.modules)
import tandem
light = sorted(set(sys.modules) - modules)
import tandem.engine.llm, tandem.engine.async_llm, tandem.cli.main, tandem.contract.registry
after = dict(
    environment=dict(os.environ), threads=torch.get_num_threads(), dtype=str(torch.get_default_dtype()),
    rng=torch.get_rng_state().tolist(), running=threading.active_count(), descriptors=len(os.listdir("/proc/self/fd")),
)
print(json.dumps([before, after, light, sorted(sys.modules)]))
"""


@pytest.fixture(scope="module")
def imported() -> tuple[dict[str, Any], dict[str, Any], list[str], list[str]]:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    before, after, light, modules = json.loads(done.stdout)
    return before, after, light, modules


def test_importing_starts_nothing(imported: tuple[Any, ...]) -> None:
    before, after, _, _ = imported
    assert after == before


def test_the_package_itself_imports_next_to_nothing(imported: tuple[Any, ...]) -> None:
    """Before anything of it is used, `import tandem` brings no other module of the package and no library."""
    _, _, light, _ = imported
    assert [name for name in light if name.startswith("tandem.")] == []
    assert not {"numpy", "torch", "tokenizers", "cffi", "deepseek_recipe"} & {name.split(".")[0] for name in light}


def test_no_vendor_library_and_no_backend_is_imported(imported: tuple[Any, ...]) -> None:
    _, _, _, modules = imported
    tops = {name.split(".")[0] for name in modules}
    assert not tops & {"torch_npu", "triton", "cupy", "pynvml", "acl", "flashinfer", "transformers", "vllm"}
    assert not [name for name in modules if name.startswith("tandem.backends.")]


# -- cache bytes -------------------------------------------------------------------------------------------


def test_bytes_per_token_at_official_dimensions() -> None:
    """Main entries: 512 fp4 codes and 32 e4m3 scales; index entries: 128 fp4 codes and 4 ue8m0 scales.  The three
    source layers of ratio 2 add half an entry to each token, the one of ratio 1 a whole one."""
    text = official_config().text
    assert [text.ratio(layer) for layer in text.kv_source_layer_ids] == [2, 2, 2, 1]
    main, index = 512 // 2 + 512 // 16, 128 // 2 + 128 // 32
    assert (main_layout(text, 1, 128).entry_bytes, index_layout(text, 1, 128).entry_bytes) == (main, index) == (288, 68)
    assert window_layout(text, 32).entry_bytes == 512 + 512 // 32 == 528
    for block_size in (2, 64, 128):
        assert global_bytes_per_token(text, block_size) == 890.0 == 2.5 * (main + index)


# -- shards ------------------------------------------------------------------------------------------------


class CountingSource:
    """A checkpoint that writes down what is read of it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.rows: dict[str, tuple[int, int]] = {}

    def names(self) -> list[str]:
        return self._checkpoint.names()

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        tensor = self._checkpoint.read(name, rows)
        first = 0 if rows is None else rows.start
        self.rows[name] = (first, first + tensor.shape[0])
        return tensor

    def release(self, name: str) -> None:
        self._checkpoint.release(name)


def read_by(tiny: Path, shard: ShardSpec) -> dict[str, tuple[int, int]]:
    """Rows read of each tensor when a shard is loaded."""
    config = ModelConfig.from_file(tiny / "config.json")
    with Checkpoint.open(tiny) as checkpoint:
        source = CountingSource(checkpoint)
        build_model(
            Plan(open_backend("cpu"), shard), source, config, tiny / "tokenizer.json", CacheSpec(16, 8, 4, 4, 2),
            max_rows=8, max_positions=64, progress=lambda name: None,
        )  # fmt: skip
    return source.rows


def test_a_shard_reads_only_what_it_owns(tiny: Path) -> None:
    rows = ModelConfig.from_file(tiny / "config.json").text.engram_num_embeddings
    halves = [(first // 3, first) for first in rows]
    whole = read_by(tiny, ShardSpec())
    left = read_by(tiny, ShardSpec(0, 2, (0, 3), tuple((n, 0, h[0]) for n, h in zip((1, 2), halves, strict=True))))
    right = read_by(tiny, ShardSpec(1, 2, (3, 8), tuple((n, *h) for n, h in zip((1, 2), halves, strict=True))))
    for part, experts, which in ((left, range(3), 0), (right, range(3, 8), 1)):
        read = {int(name.split(".experts.")[1].split(".")[0]) for name in part if ".ffn.experts." in name}
        assert read == set(experts)
        for layer, half in zip((1, 2), halves, strict=True):
            span = (0, half[0]) if which == 0 else half
            for item in ("weight", "scale"):
                assert part[f"layers.{layer}.engram.embed.{item}"] == span
                assert whole[f"layers.{layer}.engram.embed.{item}"] == (0, half[1])

    def replicated(part: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        return {n: r for n, r in part.items() if ".ffn.experts." not in n and ".engram.embed." not in n}

    assert replicated(left) == replicated(right) == replicated(whole)
    owned = [{n for n in part if ".ffn.experts." in n} for part in (left, right, whole)]
    assert not owned[0] & owned[1] and owned[0] | owned[1] == owned[2]
    assert len(owned[2]) == 8 * 8 * 3 * 2  # layers, experts, matrices, weight and scale
    assert not [name for name in whole if name.startswith(("vision", "mtp", "dspark"))]


def test_two_halves_of_the_experts_combine_to_the_whole(tiny: Path) -> None:
    """Two ranks compute their experts' rows; combined per token in the order of its k choices, then the shared expert,
    they give the bits of one rank."""
    config = ModelConfig.from_file(tiny / "config.json")
    backend = open_backend("cpu")

    def load(experts: tuple[int, int] | None) -> tuple[MoE, Plan]:
        plan = Plan(backend, ShardSpec(experts=experts))
        with Checkpoint.open(tiny) as source:
            load = WeightLoader(source, backend, plan.shard)
            return MoE(plan, load, config.text, "layers.3.ffn", 8, config.text.num_experts_per_tok), plan

    (whole, plan), (left, _), (right, _) = load(None), load((0, 3)), load((3, 8))
    ops = {name: plan.bind(name, "test") for name in ("moe_route", "moe_dispatch", "moe_experts", "moe_combine")}
    quantize, linear = plan.bind("quantize", "test"), plan.bind("linear", "test")
    swiglu = plan.bind("swiglu_quant", "test")
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(37, 128)).astype(np.float32)).to(torch.bfloat16)
    xq = quantize(x, QFormat.MXFP8)
    slot, roles = torch.zeros(37, dtype=torch.int32), torch.zeros(37, dtype=torch.int32)
    slot[5], roles[10:20] = -1, 1
    w = whole.weights
    want = whole._block(x, xq, slot, roles, w)
    chosen, weight = ops["moe_route"](x, w.gate, w.bias, w.bias_vl, roles, w.k, w.scaling)
    results, sources, offset, served = [], [], 0, []
    for half in (left, right):
        own = half.weights
        batch = ops["moe_dispatch"](xq, chosen, weight, slot, own.local)
        results.append(ops["moe_experts"](batch, own.w1, own.w3, own.w2, own.limit))
        sources.append(torch.where(batch.source >= 0, batch.source + offset, batch.source))
        offset += results[-1].shape[0]
        served.append(int((batch.source >= 0).sum()))
    assert sum(served) == 36 * w.k and min(served) > 0
    assert not ((sources[0] >= 0) & (sources[1] >= 0)).any()
    gate, up = linear(xq, w.shared_w1, torch.bfloat16), linear(xq, w.shared_w3, torch.bfloat16)
    shared = linear(swiglu(gate, up, w.limit), w.shared_w2, torch.bfloat16)
    joined = MoEBatch(batch.x, batch.weight, batch.ends, torch.maximum(*sources))
    got = ops["moe_combine"](torch.cat(results), joined, shared)
    live = slot >= 0
    assert torch.equal(got[live].view(torch.int16), want[live].view(torch.int16))
    # The order matters, so the check can fail: with the choices turned round some sums round differently.
    turned = MoEBatch(batch.x, batch.weight, batch.ends, torch.maximum(*sources).flip(1))
    alone = ops["moe_combine"](torch.cat(results), turned, None)[live]
    assert torch.equal(alone, ops["moe_combine"](torch.cat(results), joined, None)[live])  # two terms commute
    dropped = MoEBatch(batch.x, batch.weight, batch.ends, sources[0])
    assert not torch.equal(ops["moe_combine"](torch.cat(results), dropped, shared)[live], want[live])


# -- roles and overrides -----------------------------------------------------------------------------------

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
PROMPT = tokens(40, 40)


def spans(*lengths: int) -> list[int]:
    """Roles of text and image spans in turn, text first."""
    return [role for i, length in enumerate(lengths) for role in [i % 2] * length]


@pytest.mark.parametrize("chunk", [1, 3, 7, 16])
def test_no_chunk_cuts_an_image_span(tiny: Path, world: World, chunk: int) -> None:
    roles = spans(5, 9, 2, 12, 1, 4, 7)
    job = Job(PROMPT, GREEDY, {"roles": roles, "media_digest": bytes(32)})
    (want,) = world.run([job])
    own = World(tiny, {"scheduler.max_chunk": chunk, "scheduler.max_tokens_per_step": 24})
    traces = own.run([job, jobs()[1], Job(job.prompt, GREEDY, job.extras, arrival=2)])
    ends = {start + rows for request, start, rows in own.recorder.chunks if request != 1}
    inside = {i for i in range(1, len(roles)) if roles[i] and roles[i - 1]}
    assert not ends & inside
    assert len(ends & set(range(1, 40))) >= 3  # the prompt was cut
    for trace in (traces[0], traces[2]):
        assert trace.hidden == want.hidden and trace.result.token_ids == want.result.token_ids


def test_roles_change_the_rows_of_the_span_and_none_before_it(world: World) -> None:
    """Image rows are routed by their own bias and cut off from Engram; text before them sees nothing of that."""
    (plain,) = world.run([Job(PROMPT, GREEDY)])
    (mixed,) = world.run([Job(PROMPT, GREEDY, {"roles": spans(16, 8, 16)})])
    for position in range(16):
        assert mixed.hidden[position] == plain.hidden[position]
    for position in range(16, 24):
        assert mixed.hidden[position] != plain.hidden[position]


def override(world: World, rows: np.ndarray[Any, Any], positions: list[int], arrival: int = 0) -> Trace:
    """A request with replaced embedding rows, in a batch with others."""
    extras = {"embed_rows": rows, "embed_positions": positions}
    return world.run([jobs()[3], Job(PROMPT, GREEDY, extras, arrival)])[1]


def test_override_rows_replace_embeddings(world: World) -> None:
    (plain,) = world.run([Job(PROMPT, GREEDY)])
    with Checkpoint.open(world.llm.config.model.path) as checkpoint:
        table = checkpoint.read("embed.weight").clone()
    places = [3, 4, 30]
    own = table[[PROMPT[p] for p in places]]
    bits, values = own.view(torch.int16).numpy().view(np.uint16), own.to(torch.float32).numpy()
    for rows in (bits, values):  # the rows that are there anyway: nothing changes
        assert override(world, rows, places, 1).hidden == plain.hidden
    other = table[[7, 8, 9]].to(torch.float32).numpy()
    changed = override(world, other, places)
    for position in range(40):
        assert (changed.hidden[position] == plain.hidden[position]) == (position < 3), position
    turned = override(world, other[[2, 0, 1]], [30, 3, 4])  # rows belong to positions, in any order
    assert turned.hidden == changed.hidden


def test_override_rows_reach_the_model_unchanged(tiny: Path) -> None:
    own = World(tiny, {"scheduler.max_chunk": 6})
    model, seen = own.recorder.model, []
    embed = model._embed  # type: ignore[attr-defined]
    model._embed = lambda *arguments: seen.append(embed(*arguments)) or seen[-1]  # type: ignore[attr-defined]
    rows = np.random.default_rng(2).normal(size=(4, 128)).astype(np.float32)
    places = [0, 5, 6, 39]
    own.run([Job(PROMPT, GREEDY, {"embed_rows": rows, "embed_positions": places})])
    embedded = torch.cat(list(seen))[:40]
    assert torch.equal(embedded[places], torch.from_numpy(rows).to(torch.bfloat16))
    with Checkpoint.open(tiny) as checkpoint:
        table = checkpoint.read("embed.weight").clone()
    rest = [p for p in range(40) if p not in places]
    assert torch.equal(embedded[rest], table[[PROMPT[p] for p in rest]])


def test_overrides_survive_preemption(tiny: Path, world: World) -> None:
    rows = np.random.default_rng(3).normal(size=(2, 128)).astype(np.float32)
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    late = Job(tokens(41, 6), params, {"embed_rows": rows, "embed_positions": [2, 5], "roles": spans(2, 4)}, 2)
    (want,) = world.run([Job(late.prompt, late.params, late.extras)])
    own = World(tiny, {"cache.num_blocks": 7})
    traces = own.run([Job(tokens(42, 40), SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)), late])
    assert traces[1].result.preemptions > 0
    assert traces[1].hidden == want.hidden and traces[1].result.token_ids == want.result.token_ids

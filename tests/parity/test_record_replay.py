"""A run is recorded by one process and replayed by another that has nothing but the trace."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.backends.cpu.backend import CpuBackend
from tandem.backends.cpu.loading import native_status
from tandem.checkpoint.tiny import make_tiny
from tandem.cli.main import main
from tandem.config import load_config
from tandem.conformance.calls import bits, meaningful
from tandem.contract.capabilities import Capabilities, OpCap
from tandem.contract.opspec import OP_TABLE, OpFunction
from tandem.engine.llm import LLM
from tandem.errors import CapacityError, ConfigError, TandemError
from tandem.parity.budget import parse_size
from tandem.parity.record import read_prompts, record
from tandem.parity.records import Record
from tandem.parity.replay import FREE, LOCAL, Replayer, replay
from tandem.parity.trace import Trace
from tandem.parity.values import leaves, units
from tandem.sampling.params import SamplingParams

PROMPTS = [list(range(5, 25)), [7, 8, 9]]
DRAWN = 2
GREEDY = SamplingParams(max_tokens=DRAWN, temperature=0.0, seed=0)


@dataclasses.dataclass
class Machines:
    """What two processes made: the trace of the first, and the replay of the second, whose model is gone."""

    trace: Trace
    again: Trace
    files: dict[str, str]  # SHA-256 of the model's files, before they went
    tokens: list[list[int]]  # what an engine that nobody watches draws


def tandem(folder: Path, *words: str) -> dict[str, Any]:
    """Run a command in a process of its own, in a folder of its own; its JSON."""
    folder.mkdir(exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
    run = [sys.executable, "-m", "tandem.cli.main", *words, "--json"]
    done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Machines:
    folder = tmp_path_factory.mktemp("machines")
    model, one, two = folder / "model", folder / "one", folder / "two"
    make_tiny(model, 0)
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in model.iterdir()}
    llm = LLM(model, backend="cpu")
    tokens = [list(output.token_ids) for output in llm.generate(PROMPTS, GREEDY)]
    llm.close()
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps(prompt) for prompt in PROMPTS))
    tandem(
        one, "parity", "record", "--backend", "cpu", "--model", str(model), "--prompts", str(folder / "prompts.jsonl"),
        "--out", "trace", "--max-tokens", str(DRAWN),
    )  # fmt: skip
    shutil.rmtree(model)
    two.mkdir()
    shutil.move(one / "trace", two / "trace")
    tandem(two, "parity", "replay", "trace", "--backend", "cpu", "--mode", "free", "--out", "again")
    trace = Trace.open(two / "trace")
    return Machines(trace, Trace.open(two / "again", trace), files, tokens)


def unequal(trace: Trace, record: Record, one: dict[str, Any], two: dict[str, Any]) -> set[str]:
    """Names of defined outputs that differ in a bit."""
    left, right = leaves(one), leaves(two)
    assert left.keys() == right.keys(), record
    inputs = trace.inputs(record)
    found = set()
    for name in left:
        a, b = (meaningful(record.op, name, inputs, side[name]) for side in (left, right))
        if a.shape != b.shape or not torch.equal(bits(a), bits(b)):
            found.add(name)
    return found


def differing(trace: Trace, again: Trace) -> set[tuple[str, str]]:
    """Ops and outputs that differ anywhere between a trace and its replay."""
    assert [item.id for item in again.records] == [item.id for item in trace.records]
    return {
        (item.op, name)
        for item in again.records
        for name in unequal(trace, item, trace.outputs(item), again.outputs(item))
    }


def test_another_process_without_the_model_gets_the_same_bits(machines: Machines) -> None:
    assert differing(machines.trace, machines.again) == set()
    header = machines.again.header
    assert header["replay_of"] == machines.trace.digest and header["mode"] == FREE
    assert header["replayed"]["errors"] == 0
    assert header["replayed"]["anchored"] == {"inputs": 0, "entries": 0}
    # Nothing is stored twice: the same outputs have the same names.
    assert not list(machines.again.path.glob("*.safetensors"))


def test_the_header_says_what_ran(machines: Machines) -> None:
    header = machines.trace.header
    assert header["model"]["files"] == machines.files
    assert header["model"]["config"] == machines.files["config.json"]
    assert header["model"]["tokenizer"] == machines.files["tokenizer.json"]
    assert [r["prompt_token_ids"] for r in header["requests"]] == PROMPTS
    assert [r["token_ids"] for r in header["requests"]] == machines.tokens
    assert header["fingerprint"] == CpuBackend(use_native=True).fingerprint()
    assert header["op_table"]["state"] == "frozen"
    # All positions but that of the last drawn token have a row.
    assert header["steps"] == [[[0, 0, 20], [1, 0, 3]], [[0, 20, 1], [1, 3, 1]]]
    assert header["left_out"] == {"records": 0, "rows_of_weights": False}


def test_sources_are_the_memory_that_was_read(machines: Machines) -> None:
    """Every input that has a source holds the source's bits; what the model computes has one."""
    trace = machines.trace
    made = {(item.id, path): unit for item in trace.records for path, unit in flows(trace.outputs(item))}
    unsourced = set()
    for item in trace.records:
        inputs = dict(flows(trace.inputs(item)))
        for path, source in item.sources.items():
            want, have = made[source], inputs[path]
            if path in item.views:
                view = item.views[path]
                last = view.offset + sum((n - 1) * step for n, step in zip(view.shape, view.stride, strict=True))
                missing = last + 1 - want.numel()  # a table written as one row of entries lacks the last: scratch
                want = torch.nn.functional.pad(want.reshape(-1), (0, max(0, missing)))
                want = torch.as_strided(want, view.shape, view.stride, view.offset)
                want = want[:-1] if missing > 0 else want
            for a, b in zip(tensors(want), tensors(have), strict=True):
                assert torch.equal(bits(a), bits(b[: len(a)])), f"{item.op} {path}"
                assert len(b) - len(a) in (0, 1)  # the scratch row of a state array
        unsourced |= {(item.op, path) for path in inputs.keys() - item.sources.keys()}
    computed = {"x", "xq", "y", "trunk", "q", "mix.pre", "kv", "scores", "experts", "logits", "value", "latent"}
    # The first rows come from tables: embeddings and rotations.
    assert {(op, path) for op, path in unsourced if path in computed} <= {
        ("gather_rows", "x"), ("scatter_rows", "x"), ("hc_enter", "pre_prev"),
    }  # fmt: skip


def flows(values: dict[str, Any]) -> list[tuple[str, Any]]:
    return [item for name, value in values.items() for item in units(value, name)]


def tensors(unit: Any) -> list[torch.Tensor]:
    return [unit] if isinstance(unit, torch.Tensor) else [unit.data, unit.scale]


def test_cache_entries_are_those_last_written(machines: Machines) -> None:
    """The entries that a call reads, and who wrote them, follow from the calls before it."""
    trace, read = machines.trace, 0
    held: dict[tuple[str, int], tuple[int, bytes]] = {}
    for item in trace.records:
        call = trace.load(item)
        for name, cache in item.caches.items():
            value, writers = call.inputs[name], trace.writers(item)[name].tolist()
            for slot, data, writer in zip(value.held, value.data, writers, strict=True):
                assert held[cache, slot] == (writer, data.tobytes()), item
                read += 1
            written = call.outputs.get(name)
            for slot, data in zip(written.held, written.data, strict=True) if written is not None else ():
                held[cache, slot] = item.id, data.tobytes()
    assert read > 500
    # Requests of 21 and 4 rows: a window entry for each row and layer, a compressed one for each pair or row.
    assert sum(cache == "window.0" for cache, _ in held) <= 21 + 4
    assert sum(cache == "main.1" for cache, _ in held) == 10 + 2
    assert sum(cache == "main.4" for cache, _ in held) == 21 + 4


def test_layers_are_named(machines: Machines) -> None:
    """Every layer has its two entries into sub-layers; before the first and after the last there is none."""
    step = [item for item in machines.trace.records if item.step == 1]
    entered = [item.layer for item in step if item.op in ("hc_enter", "hc_step")]
    assert entered == [layer for layer in range(8) for _ in range(2)]
    assert [item.layer for item in step if item.op in ("embed", "sample", "aux.accept", "hc_collapse")] == [None] * 4
    routed = [item for item in step if item.op == "moe_route"]
    blocks = {item.id: item for item in step if item.op == "moe_block"}
    assert [blocks[item.parent].layer for item in routed if item.parent is not None] == list(range(8))


@pytest.mark.skipif(not native_status().available, reason="the native kernels are not built")
def test_only_ops_with_other_kernels_differ_locally(machines: Machines, tmp_path: Path) -> None:
    """Native kernels sum in other orders and have other exponentials; with the same inputs nothing else may differ."""
    counts = replay(machines.trace, CpuBackend(use_native=False), LOCAL, tmp_path / "plain")
    assert counts["errors"] == 0 and counts["anchored"] == {"inputs": 0, "entries": 0}
    found = differing(machines.trace, Trace.open(tmp_path / "plain", machines.trace))
    # Class A leaves the order of a sum open, U(4) an exponential; the others say where values are rounded.
    assert found
    assert {OP_TABLE[op].classes[name.split(".")[0]] for op, name in found} <= {"A", "U(4)"}


class Crooked(CpuBackend):
    """The CPU backend with one op that is wrong and one that is absent."""

    @property
    def caps(self) -> Capabilities:
        return dataclasses.replace(super().caps, ops={**super().caps.ops, "index_query": OpCap("absent", notes="gone")})

    def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
        if op != "quantize":
            return function

        def wrong(*args: Any, **kwargs: Any) -> Any:
            q = function(*args, **kwargs)
            return dataclasses.replace(q, scale=q.scale + 1)

        return wrong


def test_what_cannot_run_is_told_and_the_rest_goes_on(machines: Machines, tmp_path: Path) -> None:
    first = [item for item in machines.trace.records if item.step == 0]
    chosen = {item.id for item in first if item.layer in (1, None)}
    counts = replay(machines.trace, Crooked(True), FREE, tmp_path / "t", lambda item: item.id in chosen)
    again = Trace.open(tmp_path / "t")
    failed = [item for item in again.records if item.error is not None]
    assert [item.op for item in failed] == ["index_query"] and counts["errors"] == 1
    assert failed[0].error is not None
    assert failed[0].error["error"] == "OpUnsupported" and "gone" in failed[0].error["why"]
    # Its one reader, and those of the layer before, are anchored.
    assert counts["anchored"]["inputs"] > 1


def test_outputs_taken_from_the_trace_undo_a_fault(machines: Machines) -> None:
    """With the wrong op's outputs put in the place of its own, everything after it is right again."""
    step = [item for item in machines.trace.records if item.step == 0]
    replayer, wrong = Replayer(machines.trace, Crooked(True), FREE), 0
    for item in step:
        want = machines.trace.outputs(item)
        if item.op in ("quantize", "index_query", "attn_block", "rms_norm", "hc_enter", "hc_step", "moe_block"):
            replayer.put(item, want)  # those that quantise inside
        elif item.op in ("kv_write", "compress_update") and item.layer == 1:
            replayer.put(item, want)  # written arguments
        else:
            assert unequal(machines.trace, item, want, replayer.run(item)) == set(), item
            wrong += 1
    assert wrong > 100 and replayer.anchored["entries"] == 0


def test_numbers_that_make_no_sense_end_in_an_error_of_the_record(machines: Machines) -> None:
    """Indices of a hostile trace reach the ops: these refuse them, and nothing else happens."""
    generator, refused = torch.Generator().manual_seed(5), set()
    for item in {item.op: item for item in machines.trace.records}.values():
        trace = Trace(machines.trace.path, machines.trace.header, machines.trace.digest, machines.trace)
        host = machines.trace.inputs(item)
        for _, unit in flows(host):
            if isinstance(unit, torch.Tensor) and not unit.is_floating_point():
                unit.copy_(torch.randint(-(2**31), 2**31 - 1, unit.shape, generator=generator))
        trace.inputs, trace.writers = lambda record, host=host: host, machines.trace.writers  # type: ignore
        trace.tree = machines.trace.tree  # type: ignore[method-assign]
        try:
            Replayer(trace, CpuBackend(use_native=True), LOCAL).run(item)
        except TandemError as error:
            assert all(error.to_dict().values())
            refused.add(item.op)
    assert {"embed", "attn_block", "kv_write", "gather_rows", "scatter_rows", "index_scores"} <= refused


# -- small traces ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny(path, 0)
    return path


def test_a_small_trace_keeps_all_decisions(machines: Machines, model: Path, tmp_path: Path) -> None:
    config = load_config(env={}, args={"model.path": str(model), "backend.name": "cpu"})
    whole = sum(file.stat().st_size for file in machines.trace.path.iterdir())
    budget = whole * 2 // 5
    made = record(config, PROMPTS, GREEDY, tmp_path / "small", budget)
    assert made.nbytes <= budget and made.nbytes == sum(f.stat().st_size for f in (tmp_path / "small").iterdir())
    small = Trace.open(tmp_path / "small")
    decisions = ("moe_route", "topk_index", "sample", "aux.accept")
    assert [i for i in small.records if i.op in decisions] == [i for i in machines.trace.records if i.op in decisions]
    assert made.left_out["records"] == len(machines.trace.records) - len(small.records) > 0
    kept, left = {(i.step, i.layer) for i in small.records if i.op not in decisions}, made.left_out["groups"]
    assert kept and left and not kept & {tuple(group) for group in left}
    for mode in (LOCAL, FREE):
        counts = replay(small, CpuBackend(True), mode, tmp_path / mode)
        assert counts["errors"] == 0 and (mode == FREE) == (counts["anchored"]["inputs"] > 0)
        assert differing(small, Trace.open(tmp_path / mode, small)) == set()
    with pytest.raises(CapacityError, match="the decisions alone take"):
        record(config, [[7, 8, 9]], GREEDY, tmp_path / "none", 1000)
    assert not (tmp_path / "none").exists()


def test_only_one_op_is_replayed_on_request(
    machines: Machines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["parity", "replay", str(machines.trace.path), "--backend", "cpu", "--mode", "local"]
    assert main([*words, "--out", str(tmp_path / "t"), "--op", "attn_block", "--layer", "2", "--step", "1"]) == 0
    assert "1 calls, 0 could not run" in capsys.readouterr().out
    (item,) = Trace.open(tmp_path / "t").records
    assert (item.op, item.layer, item.step) == ("attn_block", 2, 1)


@pytest.mark.parametrize(("text", "size"), [("64MB", 64_000_000), ("1.5 KiB", 1536), ("12", 12), ("2gb", 2 * 10**9)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1TB", "x"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


def test_prompts(tmp_path: Path) -> None:
    text, lines = tmp_path / "p.txt", tmp_path / "p.jsonl"
    text.write_text("one\n\n[1, 2]\n")
    assert read_prompts(text) == ["one", "[1, 2]"]
    lines.write_text('"one"\n[1, 2]\n{"prompt": "two"}\n')
    assert read_prompts(lines) == ["one", [1, 2], "two"]
    for bad in ("", "{}", "[]", "[1.5]", "no json", '{"prompt": 3}'):
        lines.write_text(bad)
        with pytest.raises(ConfigError, match="the prompts cannot be read"):
            read_prompts(lines)

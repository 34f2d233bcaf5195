"""Binding: what a backend cannot run is said at plan time, in four parts; what it can is found once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.backends.cpu.backend import CpuBackend
from tandem.backends.cpu.weights import LAYOUT
from tandem.checkpoint.reader import Checkpoint
from tandem.checkpoint.tiny import make_tiny
from tandem.contract.capabilities import Capabilities, OpCap
from tandem.contract.cases import Draw, materialise
from tandem.contract.opspec import OP_TABLE, OpFunction
from tandem.contract.plan import Plan
from tandem.contract.types import QFormat, QTensor, ShardSpec, WeightKind
from tandem.engine.llm import LLM
from tandem.errors import LayoutError, OpUnsupported
from tandem.model.caches import CacheSpec
from tandem.model.config import ModelConfig
from tandem.model.registry import build_model
from tandem.sampling.params import SamplingParams


class PartialBackend(CpuBackend):
    """Composites, with given capability records and own ops."""

    def __init__(self, records: dict[str, OpCap], own: dict[str, OpFunction] | None = None) -> None:
        super().__init__(use_native=False)
        self.records, self.own = records, own or {}
        self.lookups: list[str] = []

    @property
    def caps(self) -> Capabilities:
        return dataclasses.replace(super().caps, ops=self.records)

    def implementation(self, op: str) -> OpFunction | None:
        self.lookups.append(op)
        return self.own.get(op)


def refusal(plan: Plan, op: str, **attrs: Any) -> dict[str, str]:
    """The four parts of the error of a binding, with what may not be missing checked."""
    with pytest.raises(OpUnsupported) as caught:
        plan.bind(op, "layers.3.attn.wq_a", **attrs)
    parts = caught.value.to_dict()
    assert parts["error"] == "OpUnsupported"
    assert "op '" in parts["what"] and "on backend 'cpu' has no implementation" in parts["what"]
    assert parts["where"] == "layers.3.attn.wq_a"
    assert "Raised while planning; no step has run" in parts["fix"]
    return parts


def test_an_unknown_op_is_refused() -> None:
    parts = refusal(Plan(PartialBackend({})), "linaer")
    assert parts["why"] == "the op is not in the contract" and "docs/CONTRACT.md" in parts["fix"]


def test_an_unknown_attribute_is_refused() -> None:
    parts = refusal(Plan(PartialBackend({})), "rope", dim=64, base=10000)
    assert parts["why"] == "the op has no attribute base" and parts["fix"].startswith("use dim, rope_dim")


def test_a_format_that_the_backend_lacks_is_refused() -> None:
    backend = PartialBackend({"linear": OpCap("composite", {"w": frozenset({"bf16", "f32"})})})
    parts = refusal(Plan(backend), "linear", x="mxfp8", w="fp8_block32", out="bf16")
    assert "w=fp8_block32 is not supported. Supported: w=bf16 or f32" in parts["why"]
    assert parts["what"].endswith("has no implementation for x=mxfp8, w=fp8_block32, out=bf16")
    assert Plan(backend).bind("linear", "head", x="bf16", w="bf16", out="f32")


def test_a_format_that_the_cpu_lacks_is_refused() -> None:
    plan = Plan(CpuBackend(use_native=True))
    assert "w=nvfp4 is not supported" in refusal(plan, "grouped_linear", x="mxfp8", w="nvfp4")["why"]


def test_an_absent_op_is_refused() -> None:
    backend = PartialBackend({"rms_norm": OpCap("absent", notes="no reductions")})
    assert "declares the op absent (no reductions)" in refusal(Plan(backend), "rms_norm", quant=True)["why"]


def test_a_composite_with_an_absent_part_is_refused() -> None:
    backend = PartialBackend({"rms_norm": OpCap("absent", notes="no reductions")})
    with pytest.raises(OpUnsupported, match="op 'rms_norm' on backend 'cpu' has no implementation.*layers.0.hc"):
        Plan(backend).bind("hc_enter", "layers.0.hc", m=4)


def test_a_fused_op_needs_no_parts() -> None:
    backend = PartialBackend({"rms_norm": OpCap("absent")}, {"hc_enter": lambda *args: "fused"})
    assert Plan(backend).bind("hc_enter", "layers.0.hc", m=4)() == "fused"


def test_an_overridden_part_is_used_by_the_composite() -> None:
    calls = []

    def own_quantize(x: torch.Tensor, fmt: QFormat) -> QTensor:
        calls.append(fmt)
        result: QTensor = OP_TABLE["quantize"].reference(x, fmt)
        return result

    plan = Plan(PartialBackend({}, {"quantize": own_quantize}))
    norm = plan.bind("rms_norm", "norm", quant=True)
    norm(torch.ones(2, 32, dtype=torch.bfloat16), None, 1e-6, True)
    assert calls == [QFormat.MXFP8]


def test_bindings_name_site_and_implementation() -> None:
    plan = Plan(PartialBackend({}, {"quantize": lambda x, fmt: None}))
    plan.bind("quantize", "layers.0.q", fmt="mxfp8")
    plan.bind("hc_mean", "tap", m=4)
    found = [(b.op, b.site, b.impl, b.attrs) for b in plan.bindings]
    assert found == [
        ("quantize", "layers.0.q", "fused", (("fmt", "mxfp8"),)),
        ("hc_mean", "tap", "composite", (("m", 4),)),
    ]


def test_one_callable_per_op_and_attributes() -> None:
    plan = Plan(PartialBackend({}))
    one, two = (plan.bind("rms_norm", site, quant=True) for site in ("a", "b"))
    assert one is two and plan.bind("rms_norm", "c", quant=False) is not one
    assert len(plan.bindings) == 3


def test_a_bound_op_is_not_looked_up_when_it_runs() -> None:
    backend = PartialBackend({})
    mean = Plan(backend).bind("hc_enter", "hc", m=4)
    before = len(backend.lookups)
    with pytest.raises(TypeError):
        mean()
    assert len(backend.lookups) == before


def test_wrap_op_sees_every_bound_op_and_part() -> None:
    seen = []

    class Tracing(PartialBackend):
        def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
            seen.append(op)
            return function

    Plan(Tracing({})).bind("index_query", "indexer", heads=2, dim=32, rope_dim=16)
    assert sorted(seen) == ["index_query", "quantize", "rope"]


def test_a_layout_that_an_op_does_not_read_is_refused() -> None:
    q = QTensor(torch.zeros(2, 32, dtype=torch.uint8), torch.zeros(2, 1, dtype=torch.uint8), QFormat.MXFP8, (2, 32))
    foreign = dataclasses.replace(q, layout="other.tiles")
    with pytest.raises(LayoutError) as caught:
        foreign.require("linear", QFormat.MXFP8)
    assert "'other.tiles'" in caught.value.why and "to_canonical" in caught.value.fix
    with pytest.raises(LayoutError, match="it is mxfp8.*the op reads mxfp4"):
        q.require("linear", QFormat.MXFP4)
    q.require("linear", QFormat.MXFP8)
    with pytest.raises(LayoutError, match="other.tiles"):
        foreign.take_rows(torch.tensor([0]))


def test_the_cpu_refuses_a_foreign_layout() -> None:
    plan = Plan(CpuBackend(use_native=False))
    x = QTensor(torch.zeros(1, 32), torch.zeros(1, 1), QFormat.MXFP8, (1, 32), "other.tiles")
    with pytest.raises(LayoutError, match="other.tiles"):
        plan.bind("group_linear", "wo_a", x="mxfp8")(x, _group_weight(plan))


def _group_weight(plan: Plan) -> Any:
    return materialise(Draw(0).weight(WeightKind.GROUP, QFormat.FP8_BLOCK32, 1, 32, 32), plan.backend, 0)


def test_a_model_is_refused_before_any_step(tmp_path: Path) -> None:
    """The site in the error is the layer that needs the format."""
    make_tiny(tmp_path, seed=0)
    backend = PartialBackend({"attn_block": OpCap("composite", {"heads": frozenset({64, 128})})})
    with Checkpoint.open(tmp_path) as source, pytest.raises(OpUnsupported) as caught:
        build_model(
            Plan(backend), source, ModelConfig.from_file(tmp_path / "config.json"), tmp_path / "tokenizer.json",
            CacheSpec(16, 8, 8, 8, 2), max_rows=8, max_positions=64, progress=lambda name: None,
        )  # fmt: skip
    assert caught.value.where == "layers.0.attn" and "for heads=4" in caught.value.what
    assert "heads=4 is not supported. Supported: heads=128 or 64" in caught.value.why


def test_the_default_shard_owns_everything() -> None:
    plan = Plan(PartialBackend({}))
    assert plan.shard == ShardSpec() and plan.shard.expert_range(8) == (0, 8)
    part = ShardSpec(1, 2, (4, 8), ((1, 100, 200),))
    assert part.expert_range(8) == (4, 8)
    assert part.engram_range(1, 660) == (100, 200) and part.engram_range(2, 864) == (0, 864)


def test_a_layout_that_only_its_owner_reads_is_refused_at_plan_time() -> None:
    cache = {"fmt": "mxfp8", "dim": 64, "layout": "odd.paged"}
    parts = refusal(Plan(PartialBackend({})), "kv_write", rope_dim=16, **cache)
    assert "op 'kv_store'" in parts["what"] and "layout=odd.paged" in parts["why"] and "canonical" in parts["why"]
    shape = {"heads": 2, "dim": 64, "rope_dim": 16, "main": False, "window": 8}
    refusal(Plan(PartialBackend({})), "attn_block", layout="odd.paged", **shape)


def test_a_private_layout_is_fine_where_its_reader_is_brought_along() -> None:
    backend = PartialBackend({}, {"kv_store": lambda *_: None})
    Plan(backend).bind("kv_write", "site", fmt="mxfp8", dim=64, rope_dim=16, layout="odd.paged")


def test_formats_are_checked_in_the_parts_of_a_composite() -> None:
    plan = Plan(CpuBackend(use_native=True))
    experts = {"k": 2, "experts": 8, "x": "mxfp8", "shape": (8, 64, 128), "layout": LAYOUT}
    parts = refusal(plan, "moe_block", w="nvfp4", **experts)
    assert "op 'grouped_linear'" in parts["what"] and "w=nvfp4" in parts["why"]
    parts = refusal(plan, "moe_block", w="mxfp4", shared_w="nvfp4", **experts)
    assert "op 'linear'" in parts["what"] and "w=nvfp4" in parts["why"]
    plan.bind("moe_block", "site", w="mxfp4", shared_w="mxfp4", **experts)


def test_an_op_declared_absent_is_refused_even_where_an_implementation_exists() -> None:
    backend = PartialBackend({"rope": OpCap("absent", notes="no trigonometry")}, {"rope": lambda *_: None})
    parts = refusal(Plan(backend), "rope")
    assert "no trigonometry" in parts["why"]


def test_composites_in_place_of_own_ops_write_the_same_text(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Composites have the same bits wherever they run, and the CPU's private layouts stop none of them."""

    def written(native: bool) -> tuple[Any, ...]:
        options = {"model.max_model_len": 64, "scheduler.max_slots": 2}
        llm = LLM(tiny, backend=CpuBackend(native), options=options)
        output = llm.generate("Once upon", SamplingParams(max_tokens=4, seed=5, ignore_eos=True, logprobs=3))[0]
        llm.close()
        return output.token_ids, output.logprobs

    own = [op for op in OP_TABLE if CpuBackend(use_native=True).implementation(op) is not None]
    wanted, kernels = written(False), written(True)
    monkeypatch.setenv("TANDEM_COMPOSITE", ",".join(own))
    assert len(own) > 50 and written(True) == wanted
    assert kernels[0] == wanted[0] and kernels != wanted, "the kernels did run before, and round differently"

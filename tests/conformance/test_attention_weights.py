"""The weights of attention between its softmax and its values: bf16 is legal, less than that is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tandem.backends.cpu.backend import CpuBackend
from tandem.conformance.calls import run_call
from tandem.conformance.compare import Mismatch
from tandem.conformance.derive.base import View, load_all
from tandem.contract.cases import materialise
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan
from tandem.ops import sparse_attn

Tensor = torch.Tensor
Narrow = Callable[[Tensor], Tensor]
OPS = ("sparse_attn", "attn_block")


def attention(narrow: Narrow, *, tiled: bool = False, sink_counts: bool = True) -> Callable[..., Tensor]:
    """`attend_rows` with weights that are narrowed before they meet the values; `tiled`: a running peak of 4 keys."""

    def attend(q: Tensor, keys: Tensor, valid: Tensor, sink: Tensor, scale: float) -> Tensor:
        scores = torch.einsum("thd,tsd->ths", q, keys) * scale
        scores = torch.where(valid[:, None], scores, -torch.inf)
        peak = torch.maximum(scores.amax(-1), sink)
        step = 4 if tiled else scores.shape[-1]
        below, output = torch.full_like(peak, -1e30), torch.zeros_like(q)
        total = torch.zeros_like(peak)
        for start in range(0, scores.shape[-1], step):
            part = scores[..., start : start + step]
            now = torch.maximum(below, part.amax(-1)) if tiled else peak
            weights, kept = torch.exp(part - now[..., None]), torch.exp(below - now)
            total = total * kept + weights.sum(-1)
            added = torch.einsum("ths,tsd->thd", narrow(weights), keys[:, start : start + step])
            output, below = output * kept[..., None] + added, now
        return output / (total + sink_counts * torch.exp(sink - below))[..., None]

    return attend


def as_bf16(weights: Tensor) -> Tensor:
    return weights.to(torch.bfloat16).float()


def as_e4m3(weights: Tensor) -> Tensor:
    return weights.to(torch.float8_e4m3fn).float()


def as_clipped_f16(weights: Tensor) -> Tensor:
    """f16 of weights times 2^17: those above a half are beyond its largest number."""
    return (weights * 2.0**17).clamp(max=65504.0).half().float() * 2.0**-17


def without_a_key(q: Tensor, keys: Tensor, valid: Tensor, sink: Tensor, scale: float) -> Tensor:
    seen = valid.clone()
    seen[:, int(valid[0].nonzero()[0, 0])] = False
    return attention(as_bf16)(q, keys, seen, sink, scale)


@pytest.fixture(scope="module")
def cases() -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Op, case, data and what is wanted, of which no output takes part."""
    found = []
    for op in OPS:
        for case in OP_TABLE[op].cases:
            data = case.build(0)
            found.append((op, case.name, data, load_all()[op](View(data), {})))
    return found


def outside(cases: Any, attend: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Cases whose output is outside of its class."""
    monkeypatch.setattr(sparse_attn, "attend_rows", attend)
    plan, wrong = Plan(CpuBackend(use_native=False)), set()
    for op, case, data, wanted in cases:
        for name, value in run_call(plan, op, materialise(data, plan.backend, 0xFF)).items():
            try:
                wanted[name].check(value, name)
            except Mismatch:
                wrong.add(f"{op}/{case}")
    return wrong


@pytest.mark.parametrize("tiled", [False, True])
def test_bf16_weights_are_legal(cases: Any, tiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outside(cases, attention(as_bf16, tiled=tiled), monkeypatch) == set()


@pytest.mark.parametrize("attend", [
    pytest.param(attention(as_e4m3), id="e4m3"),
    pytest.param(attention(as_clipped_f16), id="clipped f16"),
    pytest.param(attention(as_bf16, sink_counts=False), id="no sink"),
    pytest.param(without_a_key, id="one key less"),
])  # fmt: skip
def test_less_is_a_fault(cases: Any, attend: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = outside(cases, attend, monkeypatch)
    assert {op for op in OPS if any(case.startswith(op) for case in wrong)} == set(OPS), wrong

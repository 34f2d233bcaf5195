"""Hyper-connections and the Engram gate at official width: several chunks of columns, and rows that stay what they are
however many there are."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from support.ascend_counts import counted

from tandem.backends.ascend.kernels import (
    engram_gate,
    hc_collapse,
    hc_enter,
    hc_mix,
    hc_post,
    hc_step,
    rms_norm,
)
from tandem.backends.ascend.plan import EMULATED
from tandem.contract.backend import Backend
from tandem.contract.cases import Draw, materialise
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan
from tandem.contract.types import HcMix, HcWeights, QTensor
from tandem.errors import LayoutError, OpUnsupported
from tandem.ops.hc_mix import case_weights, coefficients

Tensor = torch.Tensor
SIZES = [(3, 4, 5120), (9, 4, 1024), (5, 3, 992), (2, 2, 6976), (7, 1, 32), (70, 4, 32)]
FULL, SMALL = 1.1, 4096  # a plan is right to a tenth, beside what is filled up to whole registers


def arguments(ascend: Backend, rows: int, m: int, width: int) -> dict[str, Any]:
    """Those of hc_step."""
    draw = Draw(1)
    given = {
        "y": draw.bf16(rows, width),
        "trunk": draw.bf16(rows, m, width),
        "mix": HcMix(draw.f32(rows, m), draw.f32(rows, m), draw.f32(rows, m, m)),
        "weights": case_weights(draw, m, width),
        "norm_weight": draw.f32(width),
    }
    return materialise(given, ascend, 0)


def tensors(value: Any) -> list[Tensor]:
    """All there are in a result."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, QTensor):
        return [value.data, value.scale]
    parts = value if isinstance(value, tuple) else [getattr(value, f.name) for f in dataclasses.fields(value)]
    return [tensor for part in parts for tensor in tensors(part)]


def same(have: Any, want: Any) -> bool:
    """Bit for bit."""
    pairs = zip(tensors(have), tensors(want), strict=True)
    return all(torch.equal(a.view(torch.uint8), b.contiguous().view(torch.uint8)) for a, b in pairs)


def row(value: Any, i: int) -> Any:
    """One row of an argument; weights as they are."""
    if isinstance(value, HcMix):
        return HcMix(*(tensor[i : i + 1].contiguous() for tensor in tensors(value)))
    return value[i : i + 1].contiguous() if isinstance(value, Tensor) and value.dim() > 1 else value


def planned(module: Any, op: str, *given: Any) -> Any:
    """The op's result, once its plan has said what it then does."""
    plans = module.PLAN[op](EMULATED, *given)
    with counted() as launches:
        result = module.OPS[op](*given)
    for plan, one in zip(plans, launches, strict=True):
        assert (plan.kind, plan.blocks) == (one.kind, one.blocks)
        assert one.distinct_read <= FULL * plan.read <= FULL * FULL * one.read and plan.written == one.written
        assert one.ub <= FULL * plan.ub + SMALL and plan.ub <= FULL * one.ub + SMALL
    return result


@pytest.mark.parametrize(("rows", "m", "width"), SIZES)
def test_a_step_is_what_its_parts_are(ascend: Backend, rows: int, m: int, width: int) -> None:
    given = arguments(ascend, rows, m, width)
    left, x, xq, mix = planned(hc_step, "hc_step", *given.values())
    post, weights, norm = given["mix"], given["weights"], given["norm_weight"]
    assert same(left, planned(hc_post, "hc_post", given["y"], given["trunk"], post.post, post.comb))
    expected = OP_TABLE["hc_post"].reference(given["y"], given["trunk"], post.post, post.comb)
    torch.testing.assert_close(left, expected, rtol=2**-7, atol=1e-5)
    assert same((x, xq, mix), planned(hc_enter, "hc_enter", left, post.pre, weights, norm))
    assert same(mix, planned(hc_mix, "hc_mix", left, weights))
    collapsed = planned(hc_collapse, "hc_collapse", left, post.pre)
    assert same((x, xq), rms_norm.rms_norm(collapsed, norm, weights.norm_eps, True))


@pytest.mark.parametrize(("rows", "m", "width"), SIZES)
def test_rows_do_not_depend_on_their_number(ascend: Backend, rows: int, m: int, width: int) -> None:
    given = arguments(ascend, rows, m, width)
    together = hc_step.hc_step(**given)
    for i in range(min(rows, 3)):
        alone = hc_step.hc_step(**{name: row(value, i) for name, value in given.items()})
        assert same(alone, tuple(_row_of(part, i) for part in together))


def _row_of(part: Any, i: int) -> Any:
    if isinstance(part, QTensor):
        return QTensor(part.data[i : i + 1], part.scale[i : i + 1], part.fmt, (1, part.shape[1]))
    return row(part, i)


@pytest.mark.parametrize(("rows", "m", "width"), [*SIZES, (4, 3, 1000), (2, 4, 33)])
def test_coefficients(ascend: Backend, rows: int, m: int, width: int) -> None:
    given = arguments(ascend, rows, m, width)
    weights: HcWeights = given["weights"]
    mix = hc_mix.hc_mix(given["trunk"], weights)
    flat = given["trunk"].double().flatten(1)
    fn = ascend.unpack_weight(weights.fn).data.double()
    mixes = (flat @ fn.T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + weights.norm_eps)
    wide = dataclasses.replace(weights, base=weights.base.double(), scale=weights.scale.double())
    for have, want in zip(tensors(mix), tensors(coefficients(mixes, wide, m)), strict=True):
        torch.testing.assert_close(have.double(), want, rtol=1e-6, atol=1e-6)


def test_five_streams_are_refused(ascend: Backend) -> None:
    with pytest.raises(LayoutError, match="5 streams"):
        hc_collapse.hc_collapse(torch.zeros((1, 5, 8), dtype=torch.bfloat16), torch.zeros((1, 5)))
    with pytest.raises(OpUnsupported, match="m=5"):
        Plan(ascend).bind("hc_step", "test", m=5)


@pytest.mark.parametrize(("rows", "m", "width"), [(2, 4, 5120), (9, 3, 1000), (3, 1, 12000)])
def test_engram_gate(ascend: Backend, rows: int, m: int, width: int) -> None:
    draw = Draw(2)
    trunk, kv, qk = draw.bf16(rows, m, width), draw.bf16(rows, (m + 1) * width), draw.f32(m, width)
    roles = torch.zeros(rows, dtype=torch.int32)
    roles[1] = 2
    updated = planned(engram_gate, "engram_gate", trunk, kv, qk, 1e-6, roles)
    assert same(updated[1], trunk[1])
    expected = OP_TABLE["engram_gate"].reference(trunk, kv, qk, 1e-6, roles)
    torch.testing.assert_close(updated.double(), expected.double(), rtol=2**-7, atol=1e-5)


def test_a_row_that_does_not_fit_is_refused(ascend: Backend) -> None:
    trunk = torch.zeros((1, 1, 20000), dtype=torch.bfloat16)
    kv, qk, roles = torch.zeros((1, 40000), dtype=torch.bfloat16), torch.zeros((1, 20000)), torch.zeros(1).int()
    with pytest.raises(LayoutError, match="does not fit the buffers"):
        engram_gate.engram_gate(trunk, kv, qk, 1e-6, roles)

"""Row invariance at lengths where the library changes its path: long sums, wide products, several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.runner import call, implementations, plan_of

from tandem.conformance.calls import bits, leaves
from tandem.conformance.rows import cut
from tandem.contract.cases import Draw, materialise
from tandem.contract.types import HcWeights, QFormat, WeightKind
from tandem.ops.numerics import row_sum

ROWS = 9


def _rms_norm(draw: Draw) -> dict[str, Any]:
    return {"x": draw.bf16(ROWS, 40960), "weight": None, "eps": 1e-6, "quant": False}


def _hc_mix(draw: Draw) -> dict[str, Any]:
    m, width = 4, 10240
    fn = draw.weight(WeightKind.HC, QFormat.F32, m * m + 2 * m, m * width)
    weights = HcWeights(fn, draw.f32(24), draw.f32(3), 1e-20, 1e-6, 20)
    return {"trunk": draw.bf16(ROWS, m, width), "weights": weights}


def _engram_gate(draw: Draw) -> dict[str, Any]:
    width = 36864
    return {
        "trunk": draw.bf16(ROWS, 1, width),
        "kv": draw.bf16(ROWS, 2 * width),
        "qk": draw.f32(1, width),
        "eps": 1e-20,
        "roles": torch.zeros(ROWS, dtype=torch.int32),
    }


def _linear(draw: Draw) -> dict[str, Any]:
    weight = draw.weight(WeightKind.LINEAR, QFormat.FP8_BLOCK32, 160, 4096)
    return {"x": draw.quantised(QFormat.MXFP8, ROWS, 4096), "weight": weight, "out_dtype": torch.float32}


def _narrow_linear(draw: Draw) -> dict[str, Any]:
    weight = draw.weight(WeightKind.LINEAR, QFormat.BF16, 1, 40960)
    return {"x": draw.bf16(ROWS, 40960), "weight": weight, "out_dtype": torch.float32}


def _sparse_attn(draw: Draw) -> dict[str, Any]:
    return {
        "q": draw.bf16(ROWS, 64, 512),
        "window": draw.cache(QFormat.MXFP8, 512, 64, 4),
        "window_slots": draw.i32(0, 256, ROWS, 128),
        "main": draw.cache(QFormat.NVFP4, 512, 64, 4),
        "main_slots": draw.i32(-1, 256, ROWS, 512),
        "sink": draw.f32(64),
        "scale": 512**-0.5,
        "hint": "decode",
    }


def _swiglu(draw: Draw) -> dict[str, Any]:
    return {"gate": draw.bf16(ROWS, 40960), "up": draw.bf16(ROWS, 40960), "limit": 10.0}


CALLS: dict[str, tuple[str, Callable[[Draw], dict[str, Any]]]] = {
    "rms_norm": ("rms_norm", _rms_norm),
    "hc_mix": ("hc_mix", _hc_mix),
    "engram_gate": ("engram_gate", _engram_gate),
    "linear": ("linear", _linear),
    "one-output linear": ("linear", _narrow_linear),
    "sparse_attn": ("sparse_attn", _sparse_attn),
    "swiglu_quant": ("swiglu_quant", _swiglu),
}


@pytest.fixture(params=[1, 4], ids=("one-thread", "four-threads"))
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize("name", sorted(CALLS))
def test_long_rows_alone_and_together(name: str, implementation: str) -> None:
    op, make = CALLS[name]
    args = materialise(make(Draw(1)), plan_of(implementation).backend, 0xFF)
    whole = leaves(call(op, implementation, args))
    for index in ([0], [ROWS - 1], [3, 4], list(range(ROWS - 1, -1, -1))):
        part = leaves(call(op, implementation, args | cut(op, args, torch.tensor(index))))
        for output, have in part.items():
            assert torch.equal(bits(have), bits(whole[output][index])), f"{output}, rows {index}"


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("length", [8, 4096, 32768, 40960, 100_000])
def test_long_sums(length: int) -> None:
    """The sum that norms, mixing and attention share, in f32, before any rounding can hide a difference."""
    x = Draw(2).f32(ROWS, length)
    whole = row_sum(x)
    for row in range(ROWS):
        assert torch.equal(row_sum(x[row : row + 1]), whole[row : row + 1])
    exact = x.to(torch.float64).sum(-1)
    assert torch.allclose(whole.to(torch.float64), exact, rtol=0, atol=2.0**-24 * length)

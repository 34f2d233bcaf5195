"""Elementary functions of kernels against float64, in units of the last place of the exact result."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels._elementary import exp_negative, log1p_unit
from tandem.backends.cuda.launch import launch

Array = npt.NDArray[Any]
BLOCK = 1 << 14
BOUND = 2.0


@triton.jit
def _apply(x, out, EXP: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    value = tl.load(x + place)
    if EXP:
        result = exp_negative(value)
    else:
        result = log1p_unit(value)
    tl.store(out + place, result)


def _run(x: Array, exp: bool) -> Array:
    padded = torch.zeros(BLOCK)
    padded[: len(x)] = torch.from_numpy(x)
    out = torch.empty(BLOCK)
    launch(_apply, (1,), padded, out, EXP=exp, BLOCK=BLOCK)
    return out.numpy()[: len(x)]


def _units(got: Array, exact: Array) -> float:
    """Largest error in units of the last place; those of subnormal results are all the same."""
    return float((np.abs(got.astype(np.float64) - exact) / np.spacing(exact.astype(np.float32))).max())


def test_exp_of_arguments_of_every_size() -> None:
    rng = np.random.default_rng(1)
    near, small, far = rng.random(8000) * 20, np.exp(rng.random(4000) * 80 - 78), rng.random(4000) * 103
    x = -np.concatenate((near, small, far)).astype(np.float32)
    assert _units(_run(x, True), np.exp(x.astype(np.float64))) < BOUND


def test_log1p_down_to_subnormal_arguments() -> None:
    rng = np.random.default_rng(2)
    x = np.concatenate((rng.random(8000), np.exp(-rng.random(8000) * 103))).astype(np.float32)
    assert _units(_run(x, False), np.log1p(x.astype(np.float64))) < BOUND


def test_ends_and_nan() -> None:
    x = np.array([0.0, -0.0, -np.inf, -3e38, np.nan], np.float32)
    assert np.array_equal(_run(x, True), np.array([1, 1, 0, 0, np.nan], np.float32), equal_nan=True)
    z = np.array([0.0, np.nan], np.float32)
    assert np.array_equal(_run(z, False), z, equal_nan=True)

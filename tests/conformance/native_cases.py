"""Inputs and callers shared by the tests of the native CPU kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cffi
import numpy as np
import pytest
import torch
from torch import Tensor

from tandem.backends.cpu import native

if not native.native_status().available:
    pytest.skip(f"no native kernels: {native.native_status().reason}", allow_module_level=True)

LIB = native.native_library()
assert LIB is not None
ROWS = (1, 2, 3, 15, 16, 17, 64)
OPS = ("quantize_fp8_g32", "fake_quant_fp8_g32", "quantize_fp4_g32", "quantize_nvfp4_g16", "hc_mix")


def run(op: str, x: Tensor) -> tuple[Tensor, ...]:
    """One op on rows bf16 [T, N]; hc_mix reads them as [T, 4, N/4] and multiplies by seeded weights."""
    if op == "hc_mix":
        weights = mix_case(1, 4, x.shape[1] // 4, seed=9)[1:]
        return LIB.hc_mix(x.reshape(x.shape[0], 4, -1), *weights)
    return getattr(LIB, op)(x)


MixArgs = tuple[Tensor, Tensor, Tensor, Tensor, float, float, int]


def mix_case(rows: int, m: int, width: int, seed: int, iters: int = 20) -> MixArgs:
    rng = torch.Generator().manual_seed(seed)
    mixes = m * m + 2 * m
    trunk = (torch.randn((rows, m, width), generator=rng) * 3).to(torch.bfloat16)
    fn = torch.randn((mixes, m * width), generator=rng) * (m * width) ** -0.5
    return trunk, fn, torch.randn(mixes, generator=rng), torch.tensor([0.7, 1.3, 0.9]), 1e-20, 1e-6, iters


def spread(rows: int, n: int, seed: int) -> Tensor:
    """bf16 rows whose groups differ in size by many powers of two, with some exact zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, n // 16, 16)) * 2.0 ** rng.integers(-30, 30, (rows, n // 16, 1))
    x[rng.random(x.shape) < 0.05] = 0.0
    return torch.from_numpy(x.reshape(rows, n)).to(torch.bfloat16)


def raw_api(path: Path) -> tuple[Any, Any, Any]:
    ffi = cffi.FFI()
    ffi.cdef(native.CDEF)
    handle = ffi.dlopen(str(path))
    return ffi, handle, handle.tandem_get_api(1)

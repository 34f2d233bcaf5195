"""Row invariance, memory discipline and equal bits on every instruction set, for the native CPU kernels."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance.native_cases import OPS, ROWS, mix_case, raw_api, run, spread
from torch import Tensor

from tandem.backends.cpu import native


@pytest.mark.parametrize("op", OPS)
def test_row_bits_do_not_depend_on_the_batch(op: str) -> None:
    """Rows alone, in batches of every tested size, at other places, and twenty times over."""
    x = spread(64, 512, seed=11)
    alone = [run(op, x[t : t + 1].clone()) for t in range(64)]
    whole = [torch.cat(parts) for parts in zip(*alone, strict=True)]
    for rows in ROWS:
        for got, want in zip(run(op, x[:rows].contiguous()), whole, strict=True):
            assert torch.equal(got, want[:rows])
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    for _ in range(20):
        for got, want in zip(run(op, x[order]), whole, strict=True):
            assert torch.equal(got, want[order])


@pytest.mark.parametrize("op", OPS)
def test_large_calls_split_over_threads_give_the_same_bits(op: str) -> None:
    x = spread(257, 8192, seed=12)  # past the threshold of every kernel
    whole = run(op, x)
    for t in (0, 1, 128, 129, 256):
        for got, want in zip(run(op, x[t : t + 1].clone()), whole, strict=True):
            assert torch.equal(got[0], want[t])


def raw_run(api: Any, op: str, x: Tensor, fill: int) -> list[np.ndarray]:
    """The outputs of one op written between guard bytes, which are checked; the guards' fill varies."""
    rows, n = x.shape
    outputs = {
        "quantize_fp8_g32": (n, n // 32),
        "fake_quant_fp8_g32": (4 * n, n // 32),
        "quantize_fp4_g32": (n // 2, n // 32),
        "quantize_nvfp4_g16": (n // 2, n // 16),
        "hc_mix": (16, 16, 64),
    }[op]
    buffers = [np.full(64 + rows * size + 64, fill, dtype=np.uint8) for size in outputs]
    pointers = [b.ctypes.data + 64 for b in buffers]
    if op == "hc_mix":
        fn, base, scale, *scalars = mix_case(1, 4, n // 4, seed=9)[1:]
        weights = (fn.data_ptr(), base.data_ptr(), scale.data_ptr())
        status = api.hc_mix(x.data_ptr(), *weights, rows, 4, n // 4, *scalars, *pointers)
    elif "fp8" in op:
        status = getattr(api, op)(x.data_ptr(), 0, rows, n, *pointers)
    else:
        status = getattr(api, op)(x.data_ptr(), rows, n, *pointers)
    assert status == 0
    for b in buffers:
        assert (b[:64] == fill).all() and (b[-64:] == fill).all()
    return [b[64:-64] for b in buffers]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("rows", ROWS)
def test_writes_all_of_its_outputs_and_reads_only_its_rows(op: str, rows: int) -> None:
    """Two fills must give equal outputs; neighbours of the input are NaN and must not show."""
    _, handle, api = raw_api(native.LIBRARY_PATH)
    x = spread(rows, 160, seed=rows)
    pool = torch.full((rows + 2, 160), float("nan"), dtype=torch.bfloat16)
    pool[1 : rows + 1] = x
    first, second = raw_run(api, op, pool[1 : rows + 1], 0xA5), raw_run(api, op, pool[1 : rows + 1], 0x3C)
    for a, b, wrapped in zip(first, second, run(op, x), strict=True):
        assert (a == b).all()
        np.testing.assert_array_equal(a, wrapped.contiguous().view(torch.uint8).numpy().reshape(-1))


def test_portable_build_gives_the_same_bits(repo_root: Path, tmp_path: Path) -> None:
    """The version for old processors, compiled here alone, against the one picked for this machine."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler to build the portable version with")
    flags = "-std=c++17 -O2 -fPIC -shared -ffp-contract=off -Wno-psabi -DTANDEM_BASELINE_ONLY".split()
    sources = [str(p) for p in (repo_root / "csrc" / "cpu").glob("*.cpp")]
    library = tmp_path / "portable.so"
    include = str(repo_root / "csrc" / "include")
    subprocess.run([compiler, *flags, "-I", include, *sources, "-o", str(library)], check=True)
    ffi, handle, api = raw_api(library)
    assert ffi.string(api.isa()) == b"baseline"
    for rows in (1, 17):
        x = spread(rows, 4 * 37 * 32, seed=13)
        for op in OPS:
            got = raw_run(api, op, x, 0)
            for a, b in zip(got, run(op, x), strict=True):
                np.testing.assert_array_equal(a, b.contiguous().view(torch.uint8).numpy().reshape(-1))

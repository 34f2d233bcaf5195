"""Entries of paged caches in canonical memory: uint8 [entries + 1, entry_bytes], codes, then scales."""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.backends.cuda.kernels._rows import decode, encode


@triton.jit
def store_entries(cache, slot, value, FMT: tl.constexpr, DIM: tl.constexpr):
    """Encode whole rows f32 [R, C] into entries slot int64 [R, 1]; nothing is written for a slot below zero."""
    code, scale = encode(value, FMT)
    bits: tl.constexpr = 8 if FMT == "mxfp8" else 4
    group: tl.constexpr = 16 if FMT == "nvfp4" else 32
    codes: tl.constexpr = DIM * bits // 8
    scales: tl.constexpr = DIM // group
    entry = cache + slot * (codes + scales)
    byte = tl.arange(0, code.shape[1])[None, :]
    tl.store(entry + byte, code, mask=(slot >= 0) & (byte < codes))
    byte = tl.arange(0, scale.shape[1])[None, :]
    tl.store(entry + codes + byte, scale.to(tl.uint8), mask=(slot >= 0) & (byte < scales))


@triton.jit
def load_entries(cache, slot, FMT: tl.constexpr, DIM: tl.constexpr, C: tl.constexpr):
    """Entries slot int64 [R, 1] as f32 [R, C]: zeros for a slot below zero and past DIM."""
    bits: tl.constexpr = 8 if FMT == "mxfp8" else 4
    group: tl.constexpr = 16 if FMT == "nvfp4" else 32
    codes: tl.constexpr = DIM * bits // 8
    scales: tl.constexpr = DIM // group
    entry = cache + slot * (codes + scales)
    byte = tl.arange(0, C * bits // 8)[None, :]
    code = tl.load(entry + byte, mask=(slot >= 0) & (byte < codes), other=0)
    byte = tl.arange(0, C // group)[None, :]
    scale = tl.load(entry + codes + byte, mask=(slot >= 0) & (byte < scales), other=0)
    return decode(code, scale, FMT)

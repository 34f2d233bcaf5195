"""`kv_write`: normalise, rotate, quantise and store key rows.

Args: x[T,D] bf16, norm_weight[D] f32, eps, cos_sin[T,rd] f32, cache, slots[T] i32 -> normed[T,D] bf16 (before
RoPE); writes RoPE(normed) to cache

Composite of rms_norm, rope (on a single head) and kv_store.  Reads x bf16 [T, D], norm weight f32 [D],
cos_sin f32 [T, rd], slots int32 [T] (-1 skips).  Writes the cache.  Returns the normalised rows before RoPE,
bf16 [T, D].  Classes: normed U(1), cache Q.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from tandem.contract.cases import FEW_ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import KVCache, QFormat
from tandem.ops.kv_store import store_arguments

Tensor = torch.Tensor


@op(
    "kv_write",
    classes={"normed": "U(1)", "cache": "Q"},
    parts=("rms_norm", "rope", "kv_store"),
    attrs=("fmt", "dim", "rope_dim", "layout"),
    passes=(("kv_store", {"fmt": "fmt", "dim": "dim", "layout": "layout"}),),
)
def kv_write(
    parts: Any, x: Tensor, norm_weight: Tensor, eps: float, cos_sin: Tensor, cache: KVCache, slots: Tensor
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    normed: Tensor = parts.rms_norm(x, norm_weight, eps, False)[0]
    rotated = parts.rope(normed.unsqueeze(1), cos_sin)
    parts.kv_store(rotated.squeeze(1), cache, slots)
    return normed


@case("kv_write", "main", FEW_ROWS)
def _main(seed: int, rows: int) -> dict[str, Any]:
    return _arguments(seed, rows, QFormat.NVFP4)


@case("kv_write", "index", FEW_ROWS)
def _index(seed: int, rows: int) -> dict[str, Any]:
    return _arguments(seed, rows, QFormat.MXFP4)


@case("kv_write", "window", FEW_ROWS)
def _window(seed: int, rows: int) -> dict[str, Any]:
    return _arguments(seed, rows, QFormat.MXFP8)


def _arguments(seed: int, rows: int, fmt: QFormat) -> dict[str, Any]:
    draw = Draw(seed + 1)
    more = {"norm_weight": draw.f32(64), "eps": 1e-20, "cos_sin": draw.cos_sin(rows, 16)}
    return store_arguments(seed, rows, fmt) | more


@case("kv_write", "values-of-the-size-of-eps")
def _small(seed: int) -> dict[str, Any]:
    """Values whose squares are about as large as eps."""
    arguments = _main(seed, 5)
    x = arguments["x"]
    return arguments | {"x": dataclasses.replace(x, value=x.value * 1e-3), "eps": 1e-6}

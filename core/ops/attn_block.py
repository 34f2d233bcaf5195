"""`attn_block`: attention between the query projection and the output projection.

Args: q[T,Hq,D] bf16 before RoPE, cos_sin[T,rd] f32, window (cache), window_slots[T,W] i32, main (cache or
None), main_slots[T,K] i32 or None, sink[Hq] f32, scale, hint -> mxfp8 [T,Hq*D] after the inverse RoPE

Composite of rope, sparse_attn, inverse rope and quantize, in one call because accelerators fuse exactly this.
Reads q bf16 [T, Hq, D] before RoPE, what `sparse_attn` reads, and cos_sin f32 [T, rd]. Returns mxfp8 [T, Hq *
D], the rotated-back output quantised in groups of 32.  Class A with 2 ulp before the quantisation: codes
round a value within it.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import FEW_ROWS, ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import KVCache, QFormat, QTensor

Tensor = torch.Tensor


@op(
    "attn_block",
    classes={"q": "A"},
    parts=("rope", "sparse_attn", "quantize"),
    attrs=("heads", "dim", "rope_dim", "main", "window", "layout", "main_layout"),
    passes=(("sparse_attn", {"layout": "layout", "main_layout": "main_layout"}),),
)
def attn_block(
    parts: Any,
    q: Tensor,
    cos_sin: Tensor,
    window: KVCache,
    window_slots: Tensor,
    main: KVCache | None,
    main_slots: Tensor | None,
    sink: Tensor,
    scale: float,
    hint: str,
) -> QTensor:
    """Plain-torch reference; see the module docstring."""
    rotated = parts.rope(q, cos_sin)
    output = parts.sparse_attn(rotated, window, window_slots, main, main_slots, sink, scale, hint)
    result: QTensor = parts.quantize(parts.rope(output, cos_sin, True).flatten(1), QFormat.MXFP8)
    return result


@case("attn_block", "window-and-main", ROWS)
def _both(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {
        "q": draw.bf16(rows, 2, 64),
        "cos_sin": draw.cos_sin(rows, 16),
        "window": draw.cache(QFormat.MXFP8, 64, 8, 4, range(1, 30)),
        "window_slots": draw.i32(1, 30, rows, 8),
        "main": draw.cache(QFormat.NVFP4, 64, 4, 6, range(1, 20)),
        "main_slots": draw.i32(1, 20, rows, 5),
        "sink": draw.f32(2),
        "scale": 64**-0.5,
        "hint": "decode",
    }


@case("attn_block", "window-only", FEW_ROWS)
def _window_only(seed: int, rows: int) -> dict[str, Any]:
    return _both(seed, rows) | {"main": None, "main_slots": None}


@case("attn_block", "window-and-keys-of-draft-rows", FEW_ROWS)
def _draft(seed: int, rows: int) -> dict[str, Any]:
    """The main cache has the window's format; the rows of a block of three read the same keys."""
    draft = Draw(seed).cache(QFormat.MXFP8, 64, 3, 30)
    first = torch.arange(rows, dtype=torch.int32) // 3 * 3
    slots = first.unsqueeze(-1) + torch.arange(3, dtype=torch.int32)
    return _both(seed, rows) | {"main": draft, "main_slots": slots}


@case("attn_block", "another-scale")
def _scaled(seed: int) -> dict[str, Any]:
    return _both(seed, 5) | {"scale": 0.3}

"""`kv_load`: read cache entries as bf16.

Args: cache, slots[..] i32 -> [..,D] bf16 (slot -1: zeros)

Reads slots int32 [...]; returns bf16 [..., D], the dequantised entries.  Slot -1 gives zeros, whatever the
cache holds. Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import FEW_ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import CANONICAL, KVCache, QFormat
from tandem.ops.kv_store import require_canonical
from tandem.ops.numerics import decode_rows

Tensor = torch.Tensor


@op("kv_load", classes={"x": "X"}, attrs=("fmt", "dim", "layout"), reads={"layout": frozenset({CANONICAL})})
def kv_load(cache: KVCache, slots: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    require_canonical("kv_load", cache)
    layout = cache.layout
    flat = slots.reshape(-1)
    entries = cache.data.index_select(0, flat.clamp_min(0))
    codes, scales = entries[:, : layout.data_bytes], entries[:, layout.data_bytes :]
    values = decode_rows(codes.contiguous(), scales.contiguous(), layout.fmt).to(torch.bfloat16)
    values = torch.where((flat >= 0).unsqueeze(-1), values, torch.zeros_like(values))
    shaped: Tensor = values.unflatten(0, slots.shape)
    return shaped


@case("kv_load", "main", FEW_ROWS)
def _main(seed: int, rows: int) -> dict[str, Any]:
    return _arguments(seed, rows, QFormat.NVFP4)


@case("kv_load", "index", FEW_ROWS)
def _index(seed: int, rows: int) -> dict[str, Any]:
    return _arguments(seed, rows, QFormat.MXFP4)


@case("kv_load", "window", FEW_ROWS)
def _window(seed: int, rows: int) -> dict[str, Any]:
    return _arguments(seed, rows, QFormat.MXFP8)


def _arguments(seed: int, rows: int, fmt: QFormat) -> dict[str, Any]:
    """Entry 0, which a clamped -1 would read, holds junk."""
    draw = Draw(seed)
    held = range(1, 30)
    slots = draw.i32(1, 30, rows, 5)
    slots[:, 3] = -1
    return {"cache": draw.cache(fmt, 64, 8, 5, held), "slots": slots}


@case("kv_load", "many-entries")
def _many(seed: int) -> dict[str, Any]:
    """Slots that 16 bits do not hold, the last one of the cache among them."""
    slots = torch.tensor([[65_599, 65_536, -1], [32_768, 1, 65_535]], dtype=torch.int32)
    held = sorted(int(slot) for slot in slots.flatten() if slot >= 0)
    return {"cache": Draw(seed).cache(QFormat.MXFP4, 32, 8, 8200, held), "slots": slots}

"""`kv_load`: read cache entries as bf16.

Reads slots int32 [...]; returns bf16 [..., D], the dequantised entries.  Slot -1 gives zeros, whatever the cache holds.
Class X.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op
from tandem.contract.types import KVCache
from tandem.ops.kv_store import require_canonical
from tandem.ops.numerics import decode_rows

Tensor = torch.Tensor


@op("kv_load", classes={"x": "X"}, attrs=("fmt", "dim"))
def kv_load(cache: KVCache, slots: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    require_canonical("kv_load", cache)
    layout = cache.layout
    flat = slots.reshape(-1)
    entries = cache.data.index_select(0, flat.clamp_min(0))
    codes, scales = entries[:, : layout.data_bytes], entries[:, layout.data_bytes :]
    values = decode_rows(codes.contiguous(), scales.contiguous(), layout.fmt).to(torch.bfloat16)
    values = torch.where((flat >= 0).unsqueeze(-1), values, torch.zeros_like(values))
    return values.unflatten(0, slots.shape)

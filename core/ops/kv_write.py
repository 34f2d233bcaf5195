"""`kv_write`: normalise, rotate, quantise and store key rows.

Composite of rms_norm, rope (on a single head) and kv_store.  Reads x bf16 [T, D], norm weight f32 [D], cos_sin f32 [T, rd],
slots int32 [T] (-1 skips).  Writes the cache.  Returns the normalised rows before RoPE, bf16 [T, D].
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import op
from tandem.contract.types import KVCache

Tensor = torch.Tensor


@op(
    "kv_write",
    classes={"normed": "U1", "cache": "Q"},
    parts=("rms_norm", "rope", "kv_store"),
    attrs=("fmt", "dim", "rope_dim"),
)
def kv_write(
    parts: Any, x: Tensor, norm_weight: Tensor, eps: float, cos_sin: Tensor, cache: KVCache, slots: Tensor
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    normed: Tensor = parts.rms_norm(x, norm_weight, eps, False)[0]
    rotated = parts.rope(normed.unsqueeze(1), cos_sin)
    parts.kv_store(rotated.squeeze(1), cache, slots)
    return normed

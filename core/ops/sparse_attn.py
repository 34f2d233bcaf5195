"""`sparse_attn`: attention of each row over its window and its selected compressed entries.

Reads q bf16 [T, Hq, D] (rotated), the window cache with window_slots int32 [T, W], the main cache with main_slots int32
[T, K] or None for layers without one, sink f32 [Hq], scale.  A slot of -1 contributes nothing, whatever memory holds.
Returns bf16 [T, Hq, D]: with s = scale * q.k over window slots then main slots,
o = sum(exp(s - M) k) / (sum(exp(s - M)) + exp(sink - M)).  Entries in both caches count twice.  Key is value.
f32 throughout, one rounding.  `hint` is "prefill" or "decode" and never changes a bit.  A row without any slot
gives zeros.  Class A.  Row bits do not depend on T.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import op
from tandem.contract.types import KVCache

Tensor = torch.Tensor


ROWS_AT_A_TIME = 64


@op("sparse_attn", classes={"o": "A"}, parts=("kv_load",), attrs=("heads", "dim", "main", "window"))
def sparse_attn(
    parts: Any,
    q: Tensor,
    window: KVCache,
    window_slots: Tensor,
    main: KVCache | None,
    main_slots: Tensor | None,
    sink: Tensor,
    scale: float,
    hint: str,
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    output = torch.empty_like(q)
    for start in range(0, q.shape[0], ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        slots = window_slots[part]
        keys = parts.kv_load(window, slots)
        if main is not None and main_slots is not None:
            keys = torch.cat((keys, parts.kv_load(main, main_slots[part])), dim=1)
            slots = torch.cat((slots, main_slots[part]), dim=1)
        output[part] = attend_rows(q[part].to(torch.float32), keys.to(torch.float32), slots >= 0, sink, scale)
    return output


def attend_rows(q: Tensor, keys: Tensor, valid: Tensor, sink: Tensor, scale: float) -> Tensor:
    """q [n, Hq, D], keys [n, S, D], valid [n, S] -> o f32 [n, Hq, D], one fixed-shape product per row."""
    scores = q.new_empty((q.shape[0], q.shape[1], keys.shape[1]))
    for t in range(q.shape[0]):
        torch.mm(q[t], keys[t].t(), out=scores[t])
    scores = torch.where(valid.unsqueeze(1), scores * scale, torch.full_like(scores, float("-inf")))
    peak = torch.maximum(scores.amax(-1), sink)
    weights = torch.exp(scores - peak.unsqueeze(-1))
    total = weights.sum(-1) + torch.exp(sink - peak)
    output = torch.empty_like(q)
    for t in range(q.shape[0]):
        torch.mm(weights[t], keys[t], out=output[t])
    return output / total.unsqueeze(-1)

"""`topk_index`: indices of the k best scores of each row.

Reads scores bf16 or f32 [T, S], k.  Returns int32 [T, k], ascending, filled with -1 at the end.
Order of preference: score descending, then index ascending.  -inf and NaN are never chosen.  Class S.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op

Tensor = torch.Tensor


@op("topk_index", classes={"index": "S"}, attrs=("k",))
def topk_index(scores: Tensor, k: int) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    low = torch.full_like(scores, float("-inf"))
    clean = torch.where(torch.isnan(scores), low, scores)
    if clean.shape[1] < k:
        clean = torch.nn.functional.pad(clean, (0, k - clean.shape[1]), value=float("-inf"))
    values, index = torch.sort(clean, dim=-1, descending=True, stable=True)
    past = clean.shape[1]
    chosen = torch.where(values[:, :k] > float("-inf"), index[:, :k], torch.full_like(index[:, :k], past))
    ascending = torch.sort(chosen, dim=-1).values
    return torch.where(ascending == past, torch.full_like(ascending, -1), ascending).to(torch.int32)

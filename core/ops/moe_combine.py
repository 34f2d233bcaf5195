"""`moe_combine`: bring expert results back to their tokens.

Reads y bf16 [Te, H], the `MoEBatch` it came from, shared bf16 [T, H] or None.  Returns bf16 [T, H]: f32 sum over k in slot
order, then the shared expert, one rounding.  Missing (token, k) pairs add nothing.  Class U(1).
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op
from tandem.contract.types import MoEBatch

Tensor = torch.Tensor


@op("moe_combine", classes={"y": "U1"}, attrs=("k",))
def moe_combine(y: Tensor, batch: MoEBatch, shared: Tensor | None) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    source = batch.source
    total = y.new_zeros((source.shape[0], y.shape[1]), dtype=torch.float32)
    for i in range(source.shape[1]):
        rows = y.index_select(0, source[:, i].clamp_min(0)).to(torch.float32)
        total = total + torch.where((source[:, i] >= 0).unsqueeze(-1), rows, torch.zeros_like(rows))
    if shared is not None:
        total = total + shared.to(torch.float32)
    return total.to(torch.bfloat16)

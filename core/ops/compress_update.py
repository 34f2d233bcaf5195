"""`compress_update`: pool r consecutive tokens into one latent, per channel.

Reads value and gate f32 [T, D], the rows, ratio r >= 2, and state f32 [R + 1, Ws, 2, D] (gate, value by position mod Ws;
the last slot is scratch).  Returns bf16 [T, D]; row t is the pooled latent of the group that ends at its position, and
is meaningful only where (position + 1) % r == 0.  Writes the state of the last Ws rows of each request.
Earlier tokens of a group come from this step's rows where they are in it, else from the state.
Softmax over the r gates in f32, terms added in position order, one rounding.  Class U(4).
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op
from tandem.contract.types import Rows

Tensor = torch.Tensor


@op("compress_update", classes={"latent": "U4", "state": "X"}, attrs=("ratio", "dim"))
def compress_update(value: Tensor, gate: Tensor, state: Tensor, rows: Rows, ratio: int) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    ring = state.shape[1]
    index = torch.arange(value.shape[0], device=value.device, dtype=torch.int64)
    slot, position = rows.slot.to(torch.int64), rows.positions.to(torch.int64)
    gates, values = [], []
    for back in range(ratio - 1, -1, -1):
        here = index - back
        inside = (here >= rows.chunk_start).unsqueeze(-1)
        stored = state[slot, (position - back).remainder(ring)]
        here = here.clamp_min(0)
        gates.append(torch.where(inside, gate.index_select(0, here), stored[:, 0]))
        values.append(torch.where(inside, value.index_select(0, here), stored[:, 1]))
    peak = gates[0]
    for g in gates[1:]:
        peak = torch.maximum(peak, g)
    weights = [torch.exp(g - peak) for g in gates]
    total, pooled = weights[0], weights[0] * values[0]
    for w, v in zip(weights[1:], values[1:], strict=True):
        total, pooled = total + w, pooled + w * v
    keep = index >= rows.chunk_end - ring
    target = torch.where(keep, slot, torch.full_like(slot, -1))
    state[target, position.remainder(ring)] = torch.stack((gate, value), dim=1)
    return (pooled / total).to(torch.bfloat16)

"""`compress_update`: pool r consecutive tokens into one latent, per channel.

Args: value[T,D] f32, gate[T,D] f32, state[R+1,Ws,2,D] f32, rows (Rows), ratio -> latent[T,D] bf16, defined
where (p+1) % r = 0; writes state

Reads value and gate f32 [T, D], the rows, ratio r >= 2, and state f32 [R + 1, Ws, 2, D] (gate, value by
position mod Ws; the last slot is scratch).  Returns bf16 [T, D]; row t is the pooled latent of the group that
ends at its position, and is meaningful only where (position + 1) % r == 0.  Writes the state of the last Ws
rows of each request. Earlier tokens of a group come from this step's rows where they are in it, else from the
state. Softmax over the r gates in f32, terms added in position order, one rounding.
Classes: latent U(4), state X.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tandem.contract.cases import Draw, PartlyUsed, step_rows
from tandem.contract.opspec import case, op
from tandem.contract.types import Rows

Tensor = torch.Tensor


@op("compress_update", classes={"latent": "U(4)", "state": "X"}, attrs=("ratio", "dim"))
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


@case("compress_update", "prefill-from-the-start")
def _prefill(seed: int) -> dict[str, Any]:
    return _arguments(seed, [(1, 0, 17)], 2, 2)


@case("compress_update", "decode-at-both-phases")
def _decode(seed: int) -> dict[str, Any]:
    return _arguments(seed, [(0, 6, 1), (2, 9, 1), (1, 4, 1)], 2, 2)


@case("compress_update", "decode-alone")
def _alone(seed: int) -> dict[str, Any]:
    return _arguments(seed, [(2, 7, 1)], 2, 2)


@case("compress_update", "mixed-with-padding")
def _mixed(seed: int) -> dict[str, Any]:
    return _arguments(seed, [(2, 5, 1), (-1, 0, 2), (0, 3, 16), (1, 0, 2), (-1, 0, 1)], 2, 2)


@case("compress_update", "ratio-four-ring-of-seven")
def _four(seed: int) -> dict[str, Any]:
    return _arguments(seed, [(1, 5, 9), (0, 7, 1), (2, 2, 3)], 4, 7)


def _arguments(seed: int, chunks: Sequence[tuple[int, int, int]], ratio: int, ring: int) -> dict[str, Any]:
    """Three request slots; the state of slots and positions that no row needs is junk."""
    draw, rows = Draw(seed), step_rows(chunks)
    state, used = draw.f32(4, ring, 2, 40), torch.zeros((4, ring, 1, 1), dtype=torch.bool)
    for slot, first, _ in chunks:
        for position in range(max(first - ring, 0), first):
            used[slot, position % ring] = slot >= 0
    count = rows.slot.shape[0]
    live = (rows.slot >= 0).unsqueeze(-1)
    return {
        "value": PartlyUsed(draw.f32(count, 40), live),
        "gate": PartlyUsed(draw.f32(count, 40, scale=3.0), live),
        "state": PartlyUsed(state, used),
        "rows": rows,
        "ratio": ratio,
    }

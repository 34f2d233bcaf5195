"""`aux.draft_rows`: the rows of draft blocks, one block for each request.

Args: anchor[N] i32 (newest token, -1 none), position[N] i32 (of the anchor), slot[N] i32, block (B), noise
(token id) -> ids[B*N] i32, positions[B*N] i32, row_slot[B*N] i32, context[B*N] i32, own[B*N] i32, keys[B*N,B]
i32

Reads anchor, position and slot int32 [N], the block width B and the id of the filler token.  Row i * N + n is
row i of block n, so the rows that make draft i of all requests lie together.  ids = the anchor in row 0,
noise in others; positions = position + i; context = position - 1, the last position whose context key exists;
own = slot * B + i, where the row's own key goes; keys = slot * B + 0 .. slot * B + B - 1, the keys of the
whole block.  Where slot or anchor is negative the rows are padding: id 0, position 0, context 0, slot, own
and keys -1.  Class X.  Source: model definition, draft block.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op(
    "aux.draft_rows",
    classes={name: "X" for name in ("ids", "positions", "row_slot", "context", "own", "keys")},
    attrs=("block",),
    since=(1, 1),
)
def draft_rows(
    anchor: Tensor, position: Tensor, slot: Tensor, block: int, noise: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Plain-torch reference; see the module docstring."""
    step = torch.arange(block, device=anchor.device, dtype=torch.int32).unsqueeze(-1)
    alive = ((slot >= 0) & (anchor >= 0)).expand(block, -1)
    own = slot * block + step
    rows = (
        torch.where(step == 0, anchor, torch.full_like(anchor, noise)),
        position + step,
        slot.expand(block, -1),
        (position - 1).expand(block, -1),
        own,
    )
    fills = (0, 0, -1, 0, -1)
    ids, positions, row_slot, context, own = (
        torch.where(alive, value, torch.full_like(value, fill)).flatten()
        for value, fill in zip(rows, fills, strict=True)
    )
    first = (slot * block).unsqueeze(-1) + step.flatten()
    keys = torch.where(alive[0].unsqueeze(-1), first, torch.full_like(first, -1)).repeat(block, 1)
    return ids, positions, row_slot, context, own, keys


@case("aux.draft_rows", "blocks-and-padding", ROWS)
def _some(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    slot = torch.arange(rows, dtype=torch.int32).flip(0)
    slot[3::4] = -1
    anchor = draw.i32(0, 90, rows)
    anchor[5::7] = -1
    return {"anchor": anchor, "position": draw.i32(1, 1 << 20, rows), "slot": slot, "block": 5, "noise": 99}


@case("aux.draft_rows", "blocks-of-one-row")
def _narrow(seed: int) -> dict[str, Any]:
    return _some(seed, 6) | {"block": 1}

"""`aux.draft_rows`: the rows of draft blocks, one block for each request.

Args: anchor[N] i32 (newest token, -1 none), position[N] i32 (of the anchor), slot[N] i32, block (B), noise
(token id) -> ids[N,B] i32, positions[N,B] i32, row_slot[N,B] i32, context[N,B] i32, own[N,B] i32, keys[N,B,B]
i32

Reads anchor, position and slot int32 [N], the block width B and the id of the filler token.  Of row i of a
block: ids = the anchor in row 0, noise in others; positions = position + i; context = position - 1, the last
position whose context key exists; own = slot * B + i, where the row's own key goes; keys = slot * B + 0 ..
slot * B + B - 1, the keys of the whole block.  Where slot or anchor is negative the block is padding: id 0,
position 0, context 0, slot, own and keys -1.  Class X.  Source: model definition, draft block.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op(
    "aux.draft_rows",
    classes=dict.fromkeys(("ids", "positions", "row_slot", "context", "own", "keys"), "X"),
    attrs=("block",),
    since=(1, 1),
)
def draft_rows(
    anchor: Tensor, position: Tensor, slot: Tensor, block: int, noise: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Plain-torch reference; see the module docstring."""
    step = torch.arange(block, device=anchor.device, dtype=torch.int32)
    alive = ((slot >= 0) & (anchor >= 0)).unsqueeze(-1)
    first, one, row_slot = anchor.unsqueeze(-1), position.unsqueeze(-1), slot.unsqueeze(-1)
    ids = torch.where(step == 0, first, torch.full_like(first, noise))
    own = row_slot * block + step
    shape = own.shape

    def living(value: Tensor, fill: int) -> Tensor:
        return torch.where(alive, value.expand(shape), torch.full_like(own, fill))

    keys = living(own, -1).unsqueeze(1).expand(-1, block, -1).contiguous()
    context, slots = living(one - 1, 0), living(row_slot, -1)
    return living(ids, 0), living(one + step, 0), slots, context, living(own, -1), keys


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

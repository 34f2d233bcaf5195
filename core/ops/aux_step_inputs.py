"""`aux.step_inputs`: token ids, positions and slots of a step, from the host or from the step before.

Args: host_ids[T] i32, host_positions[T] i32 (offsets to length where from_device), from_device[T] i32,
host_slot[T] i32, last_token[R+1] i32, length[R+1] i32, limit[R+1] i32, drafts[R+1,B] i32 or None -> ids, positions,
slot, each [T] i32

Reads host_ids and host_positions int32 [T], from_device int32 [T], host_slot int32 [T], and the device arrays
last_token, length and limit int32 [R + 1] and drafts int32 [R + 1, B] (-1: none).  Returns (ids, positions, slot)
int32 [T].  Where from_device is 0 these are the host values.  Elsewhere positions = length[slot] + host_positions,
and ids = last_token[slot] where it is 1, drafts[slot, j - 1] where it is 1 + j, for j in 1..B (only with drafts).  A
row whose id is negative (nothing could be drawn, or there is no draft) or whose position reaches limit[slot] becomes
a padding row: slot -1, id 0, position 0.  So a step queued before the host saw the last one can do no harm.  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("aux.step_inputs", classes={"ids": "X", "positions": "X", "slot": "X"})
def step_inputs(
    host_ids: Tensor,
    host_positions: Tensor,
    from_device: Tensor,
    host_slot: Tensor,
    last_token: Tensor,
    length: Tensor,
    limit: Tensor,
    drafts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Plain-torch reference; see the module docstring."""
    wide = host_slot.to(torch.int64)
    device = from_device != 0
    known = last_token[wide]
    if drafts is not None:
        place = (from_device.to(torch.int64) - 2).clamp_min(0)
        known = torch.where(from_device > 1, drafts[wide, place], known)
    ids = torch.where(device, known, host_ids)
    positions = torch.where(device, length[wide] + host_positions, host_positions)
    alive = (host_slot >= 0) & (ids >= 0) & (positions < limit[wide])
    zero = torch.zeros_like(ids)
    return (
        torch.where(alive, ids, zero),
        torch.where(alive, positions, zero),
        torch.where(alive, host_slot, torch.full_like(host_slot, -1)),
    )


@case("aux.step_inputs", "host-device-and-stopped-rows")
def _mixed(seed: int) -> dict[str, Any]:
    """Rows: host, device, padding, device without a token, device at its limit, host at its limit."""
    draw = Draw(seed)

    def ints(*numbers: int) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32)

    return {
        "host_ids": draw.i32(1, 99, 6),
        "host_positions": ints(7, 0, 0, 0, 1, 30),
        "from_device": ints(0, 1, 0, 1, 1, 0),
        "host_slot": ints(0, 1, -1, 2, 3, 4),
        "last_token": ints(5, 41, -1, 43, 44, 0),
        "length": ints(100, 12, 9, 19, 100, 0),
        "limit": ints(8, 13, 99, 20, 30, 0),
    }


@case("aux.step_inputs", "drafts")
def _drafts(seed: int) -> dict[str, Any]:
    """Rows: two requests with their drafts, the second without its last one; a draft at the limit; host; padding."""
    draw = Draw(seed)

    def ints(*numbers: int) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32)

    drafts = draw.i32(0, 99, 5, 3)
    drafts[2, 1] = -1
    return {
        "host_ids": draw.i32(1, 99, 10),
        "host_positions": ints(0, 1, 2, 3, 0, 1, 2, 1, 4, 0),
        "from_device": ints(1, 2, 3, 4, 1, 2, 3, 2, 0, 0),
        "host_slot": ints(1, 1, 1, 1, 2, 2, 2, 3, 0, -1),
        "last_token": ints(5, 41, 42, 43, 0),
        "length": ints(100, 12, 9, 19, 100),
        "limit": ints(8, 99, 99, 20, 0),
        "drafts": drafts,
    }

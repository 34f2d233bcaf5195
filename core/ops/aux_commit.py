"""`aux.commit`: hand the drawn tokens to the next step, on the device.

Args: tokens[N] i32, slots[N] i32, positions[N] i32 (of the rows drawn from), last_token[R+1] i32, length[R+1]
i32 -> None; writes last_token and length

Reads tokens int32 [N], slots int32 [N] and positions int32 [N] (position of the row each token was drawn
from). Writes last_token[slot] = token and length[slot] = position + 1; slot -1 goes to the scratch entry.
Class X.  Given up in 1.1, where the engine uses `aux.accept`; gone in the next minor.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("aux.commit", classes={"last_token": "X", "length": "X"})
def commit(tokens: Tensor, slots: Tensor, positions: Tensor, last_token: Tensor, length: Tensor) -> None:
    """Plain-torch reference; see the module docstring."""
    wide = slots.to(torch.int64)
    last_token[wide] = tokens
    length[wide] = positions + 1


@case("aux.commit", "some-skipped")
def _some(seed: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {
        "tokens": draw.i32(0, 99, 4),
        "slots": torch.tensor([3, -1, 0, -1], dtype=torch.int32),
        "positions": draw.i32(0, 99, 4),
        "last_token": draw.i32(100, 199, 6),
        "length": draw.i32(100, 199, 6),
    }

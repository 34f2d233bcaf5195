"""`aux.commit`: hand the drawn tokens to the next step, on the device.

Reads tokens int32 [N], slots int32 [N] and positions int32 [N] (position of the row each token was drawn from).
Writes last_token[slot] = token and length[slot] = position + 1; slot -1 goes to the scratch entry.  Class X.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op

Tensor = torch.Tensor


@op("aux.commit", classes={"last_token": "X", "length": "X"})
def commit(tokens: Tensor, slots: Tensor, positions: Tensor, last_token: Tensor, length: Tensor) -> None:
    """Plain-torch reference; see the module docstring."""
    wide = slots.to(torch.int64)
    last_token[wide] = tokens
    length[wide] = positions + 1

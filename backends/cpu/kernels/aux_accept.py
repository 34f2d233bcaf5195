"""`aux.accept`: see csrc/cpu/ops/aux_accept.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require

Tensor = torch.Tensor


def accept(
    token: Tensor,
    accepted: Tensor,
    first: Tensor,
    count: Tensor,
    base: Tensor,
    slots: Tensor,
    last_token: Tensor,
    length: Tensor,
) -> Tensor:
    """See core/ops/aux_accept.py."""
    rows, requests, entries = token.shape[0], first.shape[0], length.shape[0]
    require("aux.accept", (accepted, (rows,)), (last_token, (entries,)))
    require("aux.accept", *((array, (requests,)) for array in (count, base, slots)))
    emitted = temporary.empty((requests,), dtype=torch.int32)
    arrays = (token, accepted, first, count, base, slots, last_token, length, emitted)
    native.run("aux_accept", *arrays, rows, requests, entries)
    return emitted


OPS: dict[str, Any] = {"aux.accept": accept}

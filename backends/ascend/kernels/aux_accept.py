"""`aux.accept`: a SIMT thread takes a request."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

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
    emitted = torch.empty_like(count)
    inputs = (token, accepted, first, count, base, slots)
    native.run("aux_accept", *inputs, last_token, length, emitted, count.shape[0])
    return emitted


def _plan(device: Device, accepted: Tensor, count: Tensor, **others: Any) -> list[Plan]:
    """Whether each row was taken, four numbers and a token of each request."""
    requests = count.shape[0]
    return _grid.plan(device, requests, accepted.shape[0] * 4 + requests * 20, requests * 12)


OPS: dict[str, Any] = {"aux.accept": accept}
PLAN: dict[str, Any] = {"aux.accept": _plan}

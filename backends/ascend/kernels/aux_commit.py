"""`aux.commit`: a SIMT thread takes a row."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def commit(tokens: Tensor, slots: Tensor, positions: Tensor, last_token: Tensor, length: Tensor) -> None:
    """See core/ops/aux_commit.py."""
    native.run("aux_commit", tokens, slots, positions, last_token, length, tokens.shape[0])


def _plan(device: Device, tokens: Tensor, **others: Any) -> list[Plan]:
    """Three numbers of each row, two of them kept."""
    rows = tokens.shape[0]
    return _grid.plan(device, rows, rows * 12, rows * 8)


OPS: dict[str, Any] = {"aux.commit": commit}
PLAN: dict[str, Any] = {"aux.commit": _plan}

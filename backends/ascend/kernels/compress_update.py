"""`compress_update`: see csrc/ascend/compress_update.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _tiles
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import Rows

Tensor = torch.Tensor
BESIDE = 34816  # bytes of UB for numbers of rows and the system
UNIT = 256  # bytes of a register


def compress_update(value: Tensor, gate: Tensor, state: Tensor, rows: Rows, ratio: int) -> Tensor:
    """See core/ops/compress_update.py."""
    count, width = value.shape
    latent = torch.empty((count, width), dtype=torch.bfloat16, device=value.device)
    numbers = (rows.positions, rows.slot, rows.chunk_start, rows.chunk_end)
    piece = _piece(_tiles.device(value), count, width, ratio)
    native.run("compress_update", value, gate, state, *numbers, latent, count, width, state.shape[1], ratio, piece)
    return latent


def _piece(device: Device, rows: int, width: int, ratio: int) -> int:
    """All terms of a piece and what they give, twice, and four pieces on their way to the state."""
    return _tiles.piece(device, rows, 4 * width, 4 * ratio + 5, BESIDE, UNIT)


def _plan(device: Device, value: Tensor, state: Tensor, ratio: int, **others: Any) -> list[Plan]:
    """Rows shared evenly by all requests: each row is read for its group, and found in L2 when it becomes state; a
    request's first group has terms of the state."""
    (count, width), requests = value.shape, state.shape[0] - 1
    tasks = count * -(-4 * width // _piece(device, count, width, ratio))
    kept, reached = min(count, requests * state.shape[1]), min(count, requests) * (ratio - 1)
    numbers, terms, latent = 16 * count, 8 * width * (count + reached), 2 * value.numel() // ratio
    ub = 2 * numbers + 5 * terms // 2 + 2 * (latent + 8 * width * kept)
    return _tiles.plan(device, tasks, terms + numbers, latent + 8 * width * kept, ub)


OPS: dict[str, Any] = {"compress_update": compress_update}
PLAN: dict[str, Any] = {"compress_update": _plan}

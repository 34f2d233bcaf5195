"""`embed`: see csrc/ascend/embed.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _tiles
from tandem.backends.ascend.plan import Device, Plan
from tandem.backends.ascend.weights import PLAIN, unreadable
from tandem.contract.types import PackedWeight

Tensor = torch.Tensor
ROOM, BESIDE = 10, 2 * 8192 + 12 * 64  # bytes of UB for each byte of a piece, and beside


def embed(
    ids: Tensor, table: PackedWeight, override: Tensor | None = None, override_index: Tensor | None = None
) -> Tensor:
    """See core/ops/embed.py."""
    if table.layout != PLAIN:
        raise unreadable("embed", table)
    rows, width = ids.shape[0], table.shape[1]
    y = torch.empty((rows, width), dtype=torch.bfloat16, device=ids.device)
    wide = int(override is not None and override.dtype is torch.float32)
    columns = _columns(_tiles.device(ids), rows, width)
    native.run("embed", ids, table.token, override, override_index, y, rows, width, columns, wide)
    return y


def _columns(device: Device, rows: int, width: int) -> int:
    return _tiles.piece(device, rows, 2 * width, ROOM, BESIDE) // 2


def _plan(
    device: Device,
    ids: Tensor,
    table: PackedWeight,
    override: Tensor | None = None,
    override_index: Tensor | None = None,
) -> list[Plan]:
    """A row is read from one of both: counted as if all came from the table, or all from rows to be rounded."""
    rows, width = ids.shape[0], table.shape[1]
    moved, numbers = rows * width * 2, rows * (4 if override is None else 8)
    rounds = override is not None and override.dtype is torch.float32
    read, ub = (2 * moved, 6 * moved) if rounds else (moved, 2 * moved)
    tasks = rows * -(-width // _columns(device, rows, width))
    return _tiles.plan(device, tasks, read + numbers, moved, ub + 2 * numbers)


OPS: dict[str, Any] = {"embed": embed}
PLAN: dict[str, Any] = {"embed": _plan}

"""`hc_mean`: see csrc/ascend/hc_mean.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _tiles
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor
STEP = 128  # bytes of a register's worth of bf16


def hc_mean(trunk: Tensor) -> Tensor:
    """See core/ops/hc_mean.py."""
    rows, m, width = trunk.shape
    x = trunk.new_empty((rows, width))
    native.run("hc_mean", trunk, x, rows, m, width, _piece(_tiles.device(trunk), trunk) // 2)
    return x


def _piece(device: Device, trunk: Tensor) -> int:
    """UB holds two tasks, their streams and their means."""
    rows, m, width = trunk.shape
    return _tiles.piece(device, rows, 2 * width, 2 * (m + 1), unit=STEP)


def _plan(device: Device, trunk: Tensor) -> list[Plan]:
    """Each row is read once."""
    rows, m, width = trunk.shape
    read, written = rows * m * width * 2, rows * width * 2
    loaded = rows * m * _tiles.up(2 * width, STEP)
    return _tiles.plan(
        device, rows * -(-2 * width // _piece(device, trunk)), read, written, read + loaded + 2 * written
    )


OPS: dict[str, Any] = {"hc_mean": hc_mean}
PLAN: dict[str, Any] = {"hc_mean": _plan}

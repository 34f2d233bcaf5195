"""How kernels of rows are split into tasks: by the sizes of the device, never by constants of one.

Launcher and plan ask the same functions, so a plan states what the kernel gets.
"""

from __future__ import annotations

from functools import cache

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.plan import Device, Plan

UNIT = 32  # bytes of a block of UB
SYSTEM = 2048  # bytes of UB that are left to the device's own functions, as in csrc/ascend/_rows.h
LEAST = 512  # bytes of a piece of a row that is worth a task of its own


def device(tensor: torch.Tensor) -> Device:
    """The device that a tensor is on."""
    return _device(tensor.device.index or 0)


@cache
def _device(index: int) -> Device:
    return Device(**native.library().facts(index))


def up(number: int, step: int) -> int:
    """The next multiple."""
    return -(-number // step) * step


def piece(device: Device, rows: int, size: int, room: int, beside: int = 0, unit: int = UNIT) -> int:
    """Bytes of a row that a task takes: all of them, less where UB or idle cores ask for it.

    Args:
        rows, size: the rows and the bytes of one.
        room: bytes of UB that a kernel needs for each byte of a piece.
        beside: bytes of UB that it needs whatever the piece.
        unit: what a piece is a multiple of.
    """
    most = (device.ub_bytes - SYSTEM - beside) // room // unit * unit
    wanted = min(device.vector_cores // max(rows, 1), size // LEAST)
    parts = max(-(-size // most), wanted, 1)
    return min(up(-(-size // parts), unit), most)


def blocks(device: Device, tasks: int) -> int:
    """As many as have a task."""
    return min(tasks, device.vector_cores)


def plan(device: Device, tasks: int, read: int, written: int, ub: int) -> list[Plan]:
    """One launch on vector cores; none where there is nothing to do."""
    return [Plan("vector", tasks, blocks(device, tasks), read, written, ub)] if tasks else []

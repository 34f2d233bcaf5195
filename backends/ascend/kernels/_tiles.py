"""How kernels of rows are split into tasks: by the sizes of the device, never by constants of one.

Launcher and plan ask the same functions, so a plan states what the kernel gets.
"""

from __future__ import annotations

import math
from functools import cache

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.plan import Device, Plan
from tandem.errors import LayoutError

UNIT = 32  # bytes of a block of UB
SYSTEM = 2048  # bytes of UB that are left to the device's own functions, as in csrc/ascend/_rows.h
LEAST = 512  # bytes of a piece of a row that is worth a task of its own


def device(tensor: torch.Tensor) -> Device:
    """The device that a tensor is on."""
    return _device(tensor.device.index or 0)


@cache
def _device(index: int) -> Device:
    return Device(**native.library().facts(index))


def row_bytes(rows: torch.Tensor) -> int:
    """Bytes of a row, whatever its axes."""
    return math.prod(rows.shape[1:]) * rows.element_size()


def up(number: int, step: int) -> int:
    """The next multiple."""
    return -(-number // step) * step


def part(device: Device, rows: int, count: int, room: int, beside: int, unit: int, least: int) -> int:
    """Items of a row that a task takes: all of them, fewer where UB or idle cores ask for it.

    Args:
        rows, count: the rows and the items of one.
        room: bytes of UB that a kernel needs for each item of a part.
        beside: bytes of UB that it needs whatever the part.
        unit: what a part is a multiple of.
        least: items that are worth a task of their own.

    Raises:
        LayoutError: UB does not hold the smallest part.
    """
    most = (device.ub_bytes - SYSTEM - beside) // room // unit * unit
    if most < unit:
        raise LayoutError(
            "a kernel of backend 'ascend' does not take arrays of this shape",
            where=f"rows of {count} items, {room} bytes of UB for each",
            why=f"the smallest part of a row takes {unit * room + beside} of {device.ub_bytes - SYSTEM} bytes",
            fix="use smaller blocks, or fewer streams",
        )
    wanted = min(device.vector_cores // max(rows, 1), count // least)
    parts = max(-(-count // most), wanted, 1)
    return min(up(max(-(-count // parts), 1), unit), most)


def piece(device: Device, rows: int, size: int, room: int, beside: int = 0, unit: int = UNIT) -> int:
    """Bytes of a row that a task takes; see `part`."""
    return part(device, rows, size, room, beside, unit, LEAST)


def blocks(device: Device, tasks: int) -> int:
    """As many as have a task."""
    return min(tasks, device.vector_cores)


def plan(device: Device, tasks: int, read: int, written: int, ub: int) -> list[Plan]:
    """One launch on vector cores; none where there is nothing to do."""
    return [Plan("vector", tasks, blocks(device, tasks), read, written, ub)] if tasks else []

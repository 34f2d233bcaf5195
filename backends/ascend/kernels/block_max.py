"""`block_max`: see csrc/ascend/block_max.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _tiles
from tandem.backends.ascend.plan import Device, Plan
from tandem.errors import LayoutError

Tensor = torch.Tensor
UNIT, MOST = 128, 16384  # blocks of a task: what they are a multiple of, and the most that int16 counts
BESIDE = 8192  # bytes of UB for lengths
BLOCKS = tuple(1 << power for power in range(9))  # neighbours are compared, and UB holds the scores of 128 blocks


def block_max(scores: Tensor, lens: Tensor, block: int) -> Tensor:
    """See core/ops/block_max.py.

    Raises:
        LayoutError: the block is not one of `BLOCKS`.
    """
    if block not in BLOCKS:
        raise LayoutError(
            "'block_max' got a block that it does not take",
            where=f"op 'block_max', block={block}",
            why=f"the kernel takes powers of two up to {BLOCKS[-1]}",
            fix="use a block of 8 or another power of two",
        )
    rows, width = scores.shape
    out = scores.new_empty((rows, -(-width // block)))
    if out.numel():
        part = _part(_tiles.device(scores), rows, width, block)
        native.run("block_max", scores, lens, out, rows, width, block, part)
    return out


def _part(device: Device, rows: int, width: int, block: int) -> int:
    """Blocks of a task: UB holds their scores twice, what is left after one and two steps, and two results."""
    room = 2 * (2 * block + max(block // 2, 1) + block // 4 + 2)
    return min(MOST, _tiles.part(device, rows, -(-width // block), room, BESIDE, UNIT, UNIT))


def _plan(device: Device, scores: Tensor, lens: Tensor, block: int) -> list[Plan]:
    """All scores, as if all were visible."""
    rows, width = scores.shape
    count = -(-width // block)
    read, written = rows * width * 2 + rows * 4, rows * count * 2
    tasks = rows * -(-count // _part(device, rows, width, block)) if count else 0
    return _tiles.plan(device, tasks, read, written, read + 2 * written + rows * _compared(count, block))


def _compared(count: int, block: int) -> int:
    """Bytes that pass between UB and registers from the scores of a row to the largest of its blocks."""
    register, total, left = 256, 0, count * block
    if block == 1:
        total = 2 * register * -(-count // UNIT)
    while left > count:
        left //= 2
        total += 3 * register * -(-left // UNIT)
    return total + register * -(-count // UNIT)


OPS: dict[str, Any] = {"block_max": block_max}
PLAN: dict[str, Any] = {"block_max": _plan}

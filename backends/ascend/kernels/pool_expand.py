"""`pool_expand`: see csrc/ascend/pool_expand.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _tiles
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor
UNIT = 8  # blocks that are copied whole
BESIDE = 8192 + 2 * 256  # bytes of UB for lengths, and for loads past the last block


def pool_expand(blocks: Tensor, block: int, lens: Tensor) -> Tensor:
    """See core/ops/pool_expand.py."""
    rows, count = blocks.shape
    out = blocks.new_empty((rows, count * block))
    if out.numel():
        part = _part(_tiles.device(blocks), rows, count, block)
        native.run("pool_expand", blocks, lens, out, rows, count, block, part)
    return out


def _part(device: Device, rows: int, count: int, block: int) -> int:
    """Blocks of a task, of which UB holds two with their entries."""
    return _tiles.part(device, rows, count, 8 * (1 + block), BESIDE, UNIT, max(1, _tiles.LEAST // (4 * block)))


def _plan(device: Device, blocks: Tensor, block: int, lens: Tensor) -> list[Plan]:
    """Blocks and lengths once; a register of entries takes its blocks from one load."""
    rows, count = blocks.shape
    read, written = rows * (count + 1) * 4, rows * count * block * 4
    loads = rows * -(-count * block // 64) * 256
    tasks = rows * -(-count // _part(device, rows, count, block)) if count else 0
    return _tiles.plan(device, tasks, read, written, 2 * read + loads + 2 * written)


OPS: dict[str, Any] = {"pool_expand": pool_expand}
PLAN: dict[str, Any] = {"pool_expand": _plan}

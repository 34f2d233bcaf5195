"""`topk_index`: see csrc/ascend/topk_index.cpp.

A row is cut into tiles, so that all cores work on few rows, and a tile fits UB.  The best of each tile, in ascending
order, are what the next launch chooses from, until one tile is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _tiles
from tandem.backends.ascend.plan import Device, Plan
from tandem.errors import LayoutError

Tensor = torch.Tensor
UB = (216 << 10) - 384  # bytes of UB beside the cache of SIMT threads, for tiles
UNIT = 128  # columns that a tile is a multiple of
THREADS, LARGE_TILE = 1024, 8192  # of a block; columns from which on all of them have work


@dataclass(frozen=True, slots=True)
class Level:
    """A launch: columns to choose from in each row, and how many of them a tile has."""

    columns: int
    tile: int
    listed: bool  # columns come from the launch before

    @property
    def tiles(self) -> int:
        """Of a row."""
        return max(1, -(-self.columns // self.tile))


def _levels(device: Device, rows: int, columns: int, k: int, item: int) -> list[Level]:
    """How rows are cut.

    Few rows are cut further than UB asks for: while cores would idle, up to where merging takes as long as a tile, and
    only where both together take half as long as an uncut row.
    """
    levels: list[Level] = []
    while True:
        most = UB // (item + 4 if levels else 2 * item) // UNIT * UNIT
        least = parts = max(1, -(-columns // most))
        while not levels and (parts + 1) * rows <= device.vector_cores and (parts + 1) ** 2 * k <= columns:
            parts += 1
        if 2 * (columns // parts + parts * k) > columns:
            parts = least
        level = Level(columns, _tiles.up(max(1, -(-columns // parts)), UNIT), bool(levels))
        levels.append(level)
        if level.tiles == 1:
            return levels
        if level.tiles * k >= columns:
            raise _too_many(k, level)
        columns = level.tiles * k


def _too_many(k: int, level: Level) -> LayoutError:
    return LayoutError(
        "'topk_index' is asked for more columns of a row than a core can merge",
        where=f"op 'topk_index', k = {k} of {level.columns} columns",
        why=f"a tile has {level.tile} columns, so choosing {k} of each leaves as many as there were",
        fix=f"ask for less than {level.tile} columns, or choose on the host",
    )


def topk_index(scores: Tensor, k: int) -> Tensor:
    """See core/ops/topk_index.py."""
    (rows, width), item = scores.shape, scores.element_size()
    index: Tensor | None = None
    for level in _levels(_tiles.device(scores), rows, width, k, item):
        out = torch.empty((rows, level.tiles * k), dtype=torch.int32, device=scores.device)
        native.run("topk_index", scores, index, out, rows, width, level.columns, level.tile, k, item)
        index = out
    return out


def _plan(device: Device, scores: Tensor, k: int) -> list[Plan]:
    """Scores once; of each later launch the columns that the one before chose and the scores they name."""
    (rows, width), item = scores.shape, scores.element_size()
    plans: list[Plan] = []
    for level in _levels(device, rows, width, k, item):
        tasks, keys = rows * level.tiles, rows * level.columns
        read = keys * (item + 4 if level.listed else item)
        written = tasks * k * 4
        plans += _tiles.plan(device, tasks, read, written, tasks * _ub(level, k, item))
    return plans


def _ub(level: Level, k: int, item: int) -> int:
    """Of a task: keys are made, gone through for each bit, and twice by threads, which add up counts."""
    count = min(level.tile, level.columns)
    filled = _tiles.up(count, 256 // item)
    threads = THREADS if level.tile >= LARGE_TILE else THREADS // 4
    sums = 16 * (threads // 32) ** 2 + 4 * threads
    made = filled * (item + 4) + k * 4 if level.listed else (2 * filled + count) * item
    return made + 8 * item * filled * item + 2 * count * item + sums


OPS: dict[str, Any] = {"topk_index": topk_index}
PLAN: dict[str, Any] = {"topk_index": _plan}
WHY: dict[str, str] = {
    "topk_index": "few rows are cut so that all cores work; the best of each tile are written and read again"
}

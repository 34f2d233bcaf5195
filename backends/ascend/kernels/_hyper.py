"""How the pass over the residual streams is split (csrc/ascend/_hyper.h), and what it moves.

A row's bits depend on the chunks of its columns, which follow from width and device; what else is split does not show.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.backends.ascend.kernels import _tiles
from tandem.backends.ascend.kernels._rows import STEP, steps
from tandem.backends.ascend.plan import Device, Plan
from tandem.backends.ascend.weights import PLAIN, unreadable
from tandem.contract.types import HcWeights
from tandem.errors import LayoutError

GROUP, SUMS = 4, 32  # outputs of a group; f32 that a row and a chunk leave
LEAST = 256  # columns of a row that are worth a task of their own
ROUNDING = 6 * _tiles.UNIT  # bytes of UB that parts of buffers are filled up by
MOST_BLOCKS = 4095  # of a copy
MOST_STREAMS = 4  # that registers hold with all that belongs to them


@dataclass(frozen=True, slots=True)
class Split:
    """Fields as in csrc/ascend/_hyper.h."""

    rows: int
    m: int
    width: int
    columns: int
    tile: int
    row_pieces: int
    output_pieces: int = 1

    @property
    def chunks(self) -> int:
        return -(-self.width // self.columns)

    @property
    def pieces(self) -> tuple[int, int, int, int]:
        """As an entry takes them that projects; the first three, as one that does not."""
        return self.columns, self.tile, self.row_pieces, self.output_pieces

    @property
    def tasks(self) -> int:
        """None where there are no rows."""
        return self.chunks * self.row_pieces * self.output_pieces if self.rows else 0


def groups(m: int) -> int:
    """Groups of outputs: those of pre and post, those of comb."""
    return -(-2 * m // GROUP) - (-m * m // GROUP)


def plain(device: Device, rows: int, m: int, width: int, mixes: bool) -> Split:
    """Of a pass that mixes or collapses; UB holds two tiles and two results."""
    _check(m)
    column = 4 * (2 * m + 1) if mixes else 4 * (m + 1)
    row = 8 * (m * m + m)
    columns = _tiles.part(device, rows, width, column, row + ROUNDING, STEP, LEAST)
    share = max(1, device.vector_cores // -(-width // columns))
    room = (device.ub_bytes - _tiles.SYSTEM - ROUNDING) // (column * columns + row)
    tile = max(1, min(room, -(-rows // share), MOST_BLOCKS // m))
    return Split(rows, m, width, columns, tile, max(1, min(share, -(-rows // tile))))


def projecting(device: Device, rows: int, m: int, width: int) -> Split:
    """Of a pass that projects, whatever else it does: all ops sum in the same chunks."""
    _check(m)
    fixed = 4 * GROUP * groups(m) * m  # bytes of UB for each column, of weights
    column, row = 10 * m + 6, 8 * (m * m + 2 * m) + 4 * SUMS  # and for each row's column and each row
    room = device.ub_bytes - _tiles.SYSTEM - ROUNDING
    most = (room - 2 * row) // (fixed + 2 * column) // STEP * STEP
    columns = _tiles.up(-(-width // -(-width // most)), STEP)
    share = max(1, device.vector_cores // -(-width // columns))
    fits = (room - fixed * columns) // (column * columns + row) // 2 * 2
    best = min(range(1, min(share, groups(m)) + 1), key=lambda pieces: _loaded(rows, m, share, pieces))
    own = -(-rows // (share // best))
    tile = max(2, min(fits, _tiles.up(own, 2), MOST_BLOCKS // m))
    return Split(rows, m, width, columns, tile, max(1, min(share // best, -(-rows // tile))), best)


def _check(m: int) -> None:
    if m > MOST_STREAMS:
        raise LayoutError(
            "hyper-connections of backend 'ascend' have fewer streams",
            where=f"{m} streams",
            why=f"a kernel holds up to {MOST_STREAMS} of a row in registers",
            fix="run the ops as composites on another backend",
        )


def _loaded(rows: int, m: int, share: int, pieces: int) -> int:
    """What a core reads for each column of its chunk if the outputs are dealt to so many of its share."""
    return 4 * GROUP * -(-groups(m) // pieces) * m + -(-rows // (share // pieces)) * 2 * m


def fn_of(op: str, weights: HcWeights) -> torch.Tensor:
    """The projection f32 [m*m + 2m, m*H] of a sub-layer."""
    if weights.fn.layout != PLAIN:
        raise unreadable(op, weights.fn)
    fn: torch.Tensor = weights.fn.token
    return fn


def pass_plan(device: Device, split: Split, mixes: bool, collapses: bool, projects: bool) -> list[Plan]:
    """What a pass moves: everything once, and partial sums where it projects.

    Tasks that split outputs read the same rows at about the same time, as those that split rows read the same weights.
    """
    rows, m, width = split.rows, split.m, split.width
    numbers = 4 * rows * ((m * m + m if mixes else 0) + (m if collapses else 0))
    streams, x = 2 * rows * m * width, 2 * rows * width
    read = streams + (x if mixes else 0) + numbers
    written = (streams if mixes else 0) + (x if collapses else 0)
    registers = (split.chunks - 1) * steps(split.columns) + steps(width - (split.chunks - 1) * split.columns)
    loaded = registers * (rows * 2 * STEP * (m + (1 if mixes else 0)) + numbers)
    ub = split.output_pieces * (read + (split.chunks - 1) * numbers + loaded + written) + written
    if projects:
        weights, outputs = 4 * m * m * width, m + 2
        sums = 4 * rows * split.chunks * (GROUP * groups(m) + 1)
        products = rows // 2 * (2 + GROUP) + rows % 2 * (1 + GROUP)  # registers that rows in pairs load of a group
        ub += split.row_pieces * 4 * GROUP * groups(m) * m * width + 2 * sums
        ub += registers * 4 * STEP * m * (split.output_pieces * rows + groups(m) * products)
        read, written = read + weights * outputs, written + sums
    return _tiles.plan(device, split.tasks, read, written, ub)

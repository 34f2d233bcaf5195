"""Index scores on cube and vector cores: sizes, and what is moved, as csrc/ascend/_index_plan.h cuts it."""

from __future__ import annotations

import torch

from tandem.accelerator.caches import require_canonical
from tandem.backends.ascend.kernels import _rows
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import KVCache, QFormat, QTensor

Tensor = torch.Tensor
KEYS, MOST_ROWS, MOST_SPAN, BLOCK, SYSTEM = 256, 4, 16, 32, 2048


def sizes(op: str, q: QTensor, w: Tensor, cache: KVCache, table: Tensor) -> tuple[int, int, int, int]:
    """What an entry is told of shapes: heads, dim, columns of the table, entries of a block.

    Raises:
        LayoutError: queries or keys are not what the kernel reads.
    """
    q.require(op, QFormat.MXFP4)
    require_canonical(op, cache, QFormat.MXFP4)
    return w.shape[1], cache.layout.dim, table.shape[1], cache.layout.block_entries


def _up(x: int, to: int) -> int:
    return -(-x // to) * to


def _fits(device: Device, columns: int, lines: int, rows: int) -> bool:
    line = columns * (BLOCK + 2)
    ub = KEYS * (4 * lines + 2 * rows + 4 + line + BLOCK) + 6 * _rows.steps(lines) * _rows.STEP
    fractals = _up(lines, 16)
    return (
        ub + SYSTEM <= device.ub_bytes
        and (2 * KEYS + _up(lines, 32)) * line <= device.l1_bytes
        and fractals * columns * BLOCK <= device.l0a_bytes
        and 2 * KEYS * columns * BLOCK <= device.l0b_bytes
        and 8 * fractals * KEYS <= device.l0c_bytes
    )


def tasks(device: Device, most: int, rows: int, heads: int, dim: int, width: int) -> tuple[int, int]:
    """Rows of a tile, and tiles times spans of keys."""
    chunks, tile = -(-width // KEYS), most
    while not _fits(device, -(-dim // 64), tile * heads, tile):
        tile //= 2
    while tile > 1 and -(-rows // tile) * chunks < 2 * device.cube_cores:
        tile //= 2
    tiles = -(-rows // tile)
    return tile, tiles * -(-chunks // min(MOST_SPAN, max(1, tiles * chunks // (8 * device.cube_cores))))


def plan(
    device: Device, most: int, w: Tensor, cache: KVCache, requests: int, width: int, listed: int = 0
) -> list[Plan]:
    """One launch.  Every row sees all of its width, and rows of a request are neighbours.

    Args:
        most: rows of a tile at most.
        requests: that the rows are of.  A key of the cache is counted once, as if all rows after found it in L2.
        listed: bytes of an entry of a list.
    """
    (rows, heads), dim = w.shape, cache.layout.dim
    if not rows or not width:
        return []
    tile, number = tasks(device, most, rows, heads, dim, width)
    columns, groups = -(-dim // 64), min(rows, -(-rows // tile) + requests - 1)
    entry, padded, loaded = cache.layout.entry_bytes, _up(width, 32), _up(width, KEYS)
    keys = min(requests * width, cache.num_blocks * cache.layout.block_entries)
    lines = groups * (padded + _up(tile * heads, 32))  # keys and queries on their way to L1
    read = rows * heads * (entry + 2) + keys * entry + rows * (8 + width * listed)
    moved = 2 * BLOCK * (columns + 1) + 4 * columns  # of a line: in, scales looked at, out
    ub = lines * moved + rows * heads * (padded + loaded) * 4 + rows * width * (4 + 2 * listed)
    blocks = min(number, device.cube_cores)
    l1 = 2 * lines * columns * (BLOCK + 2)
    return [Plan("mixed", number, blocks, read, rows * width * 2, ub=ub, l1=l1)]

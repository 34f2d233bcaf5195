"""What attention over cache entries moves, as csrc/ascend/_attention_cube.h and _attention_vector.h do it."""

from __future__ import annotations

from tandem.backends.ascend.kernels import _rows
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import KVLayout

CHUNK, MOST_HEADS, FRACTAL_ROWS = 64, 64, 16


def chunks(count: int) -> int:
    """Chunks of a list of slots."""
    return -(-count // CHUNK)


def _up(x: int, to: int) -> int:
    return -(-x // to) * to


def gathered(layout: KVLayout, count: int) -> tuple[int, int]:
    """Bytes of entries, and of UB for bringing them to L1 as bf16, of one list of slots of a row."""
    row, slots = 2 * layout.dim, chunks(count) * CHUNK
    # Rows that fill the last chunk up are cleared; all are read on their way to L1.
    ub = count * (layout.entry_bytes + _rows.decode_ub(layout.dim, layout.fmt)) + (2 * slots - count) * row
    return count * layout.entry_bytes, ub


def plan(device: Device, rows: int, heads: int, lists: list[tuple[KVLayout, int]]) -> list[Plan]:
    """One launch; every slot is counted as held.  ``lists``: layouts of caches, and slots of a row in each."""
    if not rows:
        return []
    dim, part = lists[0][0].dim, min(heads, MOST_HEADS)
    while part >= 2 * FRACTAL_ROWS and rows * -(-heads // part) < device.cube_cores:
        part //= 2
    parts = -(-heads // part)
    tasks, blocks = rows * parts, min(rows * parts, device.cube_cores)
    number = max(1, sum(chunks(count) for _, count in lists))
    slots = sum(4 * count for _, count in lists)
    brought = [gathered(*each) for each in lists]
    read = rows * (2 * heads * dim + parts * (slots + sum(entries for entries, _ in brought)) + 4 * heads)
    whole = parts * _up(part, FRACTAL_ROWS)
    # Scores, weights, outputs of a chunk and their sums; then the result.
    ub = parts * (sum(part for _, part in brought) + 2 * slots) + heads * (number * (12 * CHUNK + 16 * dim) + 8 * dim)
    steps = -(-dim // (device.l0b_bytes // 4 // CHUNK))
    l1 = 2 * heads * dim + number * (6 * parts * CHUNK * dim + 2 * heads * CHUNK)
    l1 += number * 2 * whole * (dim + steps * CHUNK)
    return [Plan("mixed", tasks, blocks, read, 2 * rows * heads * dim, ub=rows * ub, l1=rows * l1)]

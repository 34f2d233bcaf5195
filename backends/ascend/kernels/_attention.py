"""What attention over cache entries moves, as csrc/ascend/_attention_cube.h and _attention_vector.h do it."""

from __future__ import annotations

from typing import Any

import torch

from tandem.accelerator.caches import require_canonical
from tandem.backends.ascend.kernels import _rows, _tiles
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import KVCache, KVLayout, QFormat

Tensor = torch.Tensor
CHUNK, MOST_HEADS, FRACTAL_ROWS = 64, 64, 16
WHY = (
    "what several rows of a step select is read once for each of them, the least counts it once; few rows are dealt "
    "out by chunks, whose f32 sums are written and read again"
)


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


def lists(
    op: str, window: KVCache, window_slots: Tensor, main: KVCache | None, main_slots: Tensor | None
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The kernels' arguments that name caches and slots, and those that give numbers of slots and formats."""
    require_canonical(op, window)
    count, own = window_slots.shape[1], _rows.FORMATS[window.layout.fmt]
    if main is None or main_slots is None:
        return (window.data, window_slots, None, None), (count, 0, own, own)
    require_canonical(op, main)
    sizes = count, main_slots.shape[1], own, _rows.FORMATS[main.layout.fmt]
    return (window.data, window_slots, main.data, main_slots), sizes


def layouts(
    window: KVCache, window_slots: Tensor, main: KVCache | None, main_slots: Tensor | None
) -> list[tuple[KVLayout, int]]:
    """The caches' layouts, and slots of a row in each."""
    found = [(window.layout, window_slots.shape[1])]
    if main is not None and main_slots is not None:
        found.append((main.layout, main_slots.shape[1]))
    return found


def spans(device: Device, rows: int, heads: int, lists: list[tuple[KVLayout, int]]) -> int:
    """Tasks that the chunks of a row are dealt to: one for each, or one for all.

    One for each, and a second launch that merges them, only where that takes a third of the time of whole rows.
    """
    number = sum(chunks(count) for _, count in lists)
    waves = -(-rows * -(-heads // MOST_HEADS) * number // device.cube_cores)
    return number if 0 < 3 * waves <= number else 1


def partial(q: Tensor, lists: list[tuple[KVLayout, int]]) -> Tensor | None:
    """What tasks of one chunk leave, or None where a task has all of a row."""
    rows, heads, dim = q.shape
    number = spans(_tiles.device(q), rows, heads, lists)
    return None if number == 1 else torch.empty(rows * number * heads * (dim + 2), dtype=torch.float32, device=q.device)


def _before(heads: int, dim: int, parts: int, turned: int) -> tuple[int, int]:
    """Of a row, before attention: bytes read, and of UB.  ``turned``: 0 where queries go to L1 as they are."""
    queries = 2 * heads * dim
    if not turned:
        return queries, 0
    # Queries come, are rotated and go to L1, by the angles that both vector cores of a part have.
    return queries + 4 * turned * parts, 2 * queries + 8 * turned * parts + _rotated(heads, turned)


def _after(heads: int, dim: int, parts: int, turned: int) -> tuple[int, int]:
    """After it: bytes written, and of UB."""
    result = 2 * heads * dim
    if not turned:
        return result, 2 * result
    encoded = _rows.quantised_bytes(1, heads * dim, QFormat.MXFP8)
    ub = result + _rotated(heads, turned) + _rows.encode_ub(heads * dim, QFormat.MXFP8, 2) + encoded
    return encoded, ub + 4 * turned * parts


def _rotated(heads: int, turned: int) -> int:
    """Bytes of UB."""
    return heads * (_rows.steps(turned // 2) * _rows.STEP * 4 + 2 * turned)


def _merge(device: Device, rows: int, heads: int, dim: int, number: int, turned: int) -> Plan:
    """The second launch of split rows, over heads of rows."""
    each = min(-(-rows * heads // device.vector_cores), heads, MOST_HEADS)
    parts = -(-heads // each)
    left = number * heads * 4 * (dim + 2)
    written, around = _after(heads, dim, parts, turned)
    read = left + 4 * heads + 4 * turned * parts
    ub = left + 4 * turned * parts + heads * (number * 12 + 4) * dim + around
    tasks = rows * parts
    return Plan("vector", tasks, min(tasks, device.vector_cores), rows * read, rows * written, ub=rows * ub)


def plan(device: Device, rows: int, heads: int, lists: list[tuple[KVLayout, int]], turned: int = 0) -> list[Plan]:
    """Every slot is counted as held.  ``lists``: layouts of caches, and slots of a row in each."""
    if not rows:
        return []
    dim, part, split = lists[0][0].dim, min(heads, MOST_HEADS), spans(device, rows, heads, lists)
    parts, number = -(-heads // part), max(1, sum(chunks(count) for _, count in lists))
    tasks = rows * parts * split
    slots = sum(4 * count for _, count in lists)
    brought = [gathered(*each) for each in lists]
    read, before = _before(heads, dim, parts, turned)
    read += parts * (slots + sum(entries for entries, _ in brought)) + 4 * heads
    # Scores, weights and outputs of a chunk.
    ub = parts * (sum(part for _, part in brought) + 2 * slots) + heads * number * (12 * CHUNK + 4 * dim)
    steps = -(-dim // (device.l0b_bytes // 4 // CHUNK))
    l1 = 2 * heads * dim * split + number * (6 * parts * CHUNK * dim + 2 * heads * CHUNK)
    l1 += number * 2 * parts * _up(part, FRACTAL_ROWS) * (dim + steps * CHUNK)
    blocks = min(tasks, device.cube_cores)
    if split > 1:
        left = number * heads * 4 * (dim + 2)
        ub += split * before + left
        first = Plan("mixed", tasks, blocks, rows * read, rows * left, ub=rows * ub, l1=rows * l1)
        return [first, _merge(device, rows, heads, dim, number, turned)]
    written, after = _after(heads, dim, parts, turned)
    # What merges the outputs, and what makes them the result.
    ub += before + heads * (number * 12 + 4) * dim + after
    return [Plan("mixed", tasks, blocks, rows * read, rows * written, ub=rows * ub, l1=rows * l1)]

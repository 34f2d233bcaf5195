"""What attention over cache entries moves, as csrc/ascend/_attention_cube.h and _attention_vector.h do it."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend.kernels import _entries, _rows
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import KVCache, KVLayout, QFormat

Tensor = torch.Tensor
CHUNK, MOST_HEADS, FRACTAL_ROWS = 64, 64, 16
WHY = "what several rows of a step select is read once for each of them; the least counts it once"


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
    _entries.require(op, window)
    count, own = window_slots.shape[1], _rows.FORMATS[window.layout.fmt]
    if main is None or main_slots is None:
        return (window.data, window_slots, None, None), (count, 0, own, own)
    _entries.require(op, main)
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


def _ends(heads: int, dim: int, parts: int, turned: int) -> tuple[int, int, int]:
    """Of a row: bytes read, bytes written, and bytes of UB, before and after attention.  ``turned``: 0 for none."""
    result = 2 * heads * dim
    if not turned:
        return result, result, 2 * result  # queries go to L1; outputs are stored to UB and read from it
    angles = 4 * turned * parts
    encoded = _rows.quantised_bytes(1, heads * dim, QFormat.MXFP8)
    registers = heads * (_rows.steps(turned // 2) * _rows.STEP * 4 + 2 * turned)
    # Queries come, are rotated and go to L1; outputs are written, rotated, encoded and leave as codes.
    ub = 2 * result + 2 * registers + 6 * angles + result + _rows.encode_ub(heads * dim, QFormat.MXFP8, 2) + encoded
    return result + angles, encoded, ub


def plan(device: Device, rows: int, heads: int, lists: list[tuple[KVLayout, int]], turned: int = 0) -> list[Plan]:
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
    read, written, around = _ends(heads, dim, parts, turned)
    read += parts * (slots + sum(entries for entries, _ in brought)) + 4 * heads
    whole = parts * _up(part, FRACTAL_ROWS)
    # Scores, weights, outputs of a chunk and their sums; then the result.
    ub = parts * (sum(part for _, part in brought) + 2 * slots) + heads * (number * (12 * CHUNK + 16 * dim) + 4 * dim)
    steps = -(-dim // (device.l0b_bytes // 4 // CHUNK))
    l1 = 2 * heads * dim + number * (6 * parts * CHUNK * dim + 2 * heads * CHUNK)
    l1 += number * 2 * whole * (dim + steps * CHUNK)
    return [Plan("mixed", tasks, blocks, rows * read, rows * written, ub=rows * (ub + around), l1=rows * l1)]

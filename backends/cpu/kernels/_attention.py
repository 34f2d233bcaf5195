"""The caches and the memory that attention kernels get; see csrc/cpu/attention.h."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import temporary
from tandem.backends.cpu.kernels import _caches, _shapes
from tandem.contract.types import KVCache

Tensor = torch.Tensor
CHUNK, LANES = 64, 16
ROWS = 4  # that scratch memory is there for at least: rows of a few threads share their caches


def caches(
    op: str, q: Tensor, window: KVCache, window_slots: Tensor, main: KVCache | None, main_slots: Tensor | None
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Arrays of caches and slots; and widths, entries and formats of both caches.

    Raises:
        LayoutError: a cache or its slots are not what the op reads.
    """
    rows, _, dim = q.shape
    fmt, width = _caches.check(op, window, dim), window_slots.shape[-1]
    _shapes.require(op, window_slots=(window_slots, (rows, width)))
    if main is None or main_slots is None:
        return (window.data, window_slots, None, None), (width, 0, window.data.shape[0], 0, fmt, fmt)
    main_fmt, main_width = _caches.check(op, main, dim), main_slots.shape[-1]
    _shapes.require(op, main_slots=(main_slots, (rows, main_width)))
    entries = window.data.shape[0], main.data.shape[0]
    return (window.data, window_slots, main.data, main_slots), (width, main_width, *entries, fmt, main_fmt)


def scratch(q: Tensor, width: int, main_width: int) -> Tensor:
    """Memory for some of the rows, int32 [rows, words]."""
    rows, heads, dim = q.shape
    lanes = -(-heads // LANES) * LANES
    chunks = -(-width // CHUNK) + -(-main_width // CHUNK)
    words = dim // 2 * lanes + chunks * (CHUNK // 2 * dim + (CHUNK + 2) * lanes + LANES)
    return temporary.empty((min(rows, max(ROWS, torch.get_num_threads())), words), dtype=torch.int32)

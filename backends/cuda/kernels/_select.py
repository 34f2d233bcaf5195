"""The k best of each row by (value descending, index ascending), which `topk_index` and `top_logprobs` share.

A row is cut into tiles, and each tile gives the indices of its own k best in ascending order, -1 at the end.  The k
best of the row are among them, and stand in ascending order from tile to tile, so the same kernel applied to these
indices finds them, again and again until one tile is left.  Scores are read from memory once; what later levels
read again is k of each tile.  All decisions are counts of integers, so how a row is cut changes no bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
TILE = 8192


@triton.jit
def order_key(value, BITS: tl.constexpr):
    """uint32 keys in the order of the values, both zeros alike; 0 for NaN and -inf, which are never chosen.

    BITS is 32, or 16 for values that came from bf16.
    """
    wide = value.to(tl.float32)
    wide = tl.where(wide == 0.0, 0.0, wide)
    bits = wide.to(tl.uint32, bitcast=True)
    key = tl.where((bits >> 31) != 0, ~bits, bits | 0x80000000)
    return tl.where(wide > float("-inf"), key, 0).to(tl.uint32) >> (32 - BITS)


@triton.jit
def kth_key(key, k, BITS: tl.constexpr):
    """The largest threshold that at least k keys reach, found bit by bit from the top; 0 where at most k are above 0.

    Keys stay in registers, and a step is one comparison and one count: keys of a row share their leading bits, so
    bins of a histogram would be few and contended.
    """
    threshold = tl.full((), 0, tl.uint32)
    if tl.sum((key > 0).to(tl.int32)) > k:
        bit = tl.full((), 1 << (BITS - 1), tl.uint32)
        for _ in range(BITS):
            reached = tl.sum((key >= (threshold | bit)).to(tl.int32))
            threshold = tl.where(reached >= k, threshold | bit, threshold)
            bit = bit >> 1
    return threshold


@triton.jit
def _best_of_tile(
    values, index, out, width, columns, k, BITS: tl.constexpr, TILE: tl.constexpr, PLACES: tl.constexpr
):
    """One tile of one row: threshold, then a running count gives each chosen index its place."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = place < columns
    if index is None:
        chosen_from = place
        value = tl.load(values + row * width + place, mask=inside, other=float("-inf"))
    else:
        chosen_from = tl.load(index + row * columns + place, mask=inside, other=-1)
        value = tl.load(values + row * width + chosen_from, mask=chosen_from >= 0, other=float("-inf"))
    key = order_key(value, BITS)
    threshold = kth_key(key, k, BITS)
    above = key > threshold
    level = (key == threshold) & (key > 0)
    # Fewer than k keys are above the threshold, so both counts fit into one word.
    ones = (above.to(tl.int32) << 16) + level.to(tl.int32)
    until = tl.cumsum(ones, axis=0)
    whole = tl.sum(ones, axis=0)
    wanted = k - (whole >> 16)
    ties = tl.minimum(until & 0xFFFF, wanted)
    start = out + (row * tl.num_programs(1) + tl.program_id(1)) * k
    chosen = above | (level & ((until & 0xFFFF) <= wanted))
    tl.store(start + (until >> 16) + ties - 1, chosen_from, mask=chosen)
    left = tl.arange(0, PLACES)
    found = (whole >> 16) + tl.minimum(whole & 0xFFFF, wanted)
    tl.store(start + left, tl.full((PLACES,), -1, tl.int32), mask=(left >= found) & (left < k))


def best_indices(values: Tensor, k: int) -> Tensor:
    """Indices int32 [T, k] of the k best of bf16 or f32 [T, S], ascending, -1 at the end."""
    rows, width = values.shape
    places = triton.next_power_of_2(k)
    index, columns = None, width
    while True:
        tile = min(max(TILE, 4 * places), max(128, triton.next_power_of_2(columns)))
        parts = max(1, triton.cdiv(columns, tile))
        out = torch.empty((rows, parts * k), dtype=torch.int32, device=values.device)
        launch(
            _best_of_tile,
            (rows, parts),
            values,
            index,
            out,
            width,
            columns,
            k,
            BITS=8 * values.element_size(),
            TILE=tile,
            PLACES=places,
            num_warps=max(4, min(16, tile // 512)),
        )
        if parts == 1:
            return out
        index, columns = out, parts * k


def traffic(values: Tensor, k: int) -> tuple[int, int]:
    """Values once; indices of each level and the values they name, written once and read once."""
    rows, width = values.shape
    size, places = values.element_size(), triton.next_power_of_2(k)
    read, written, columns = width * size, 0, width
    while True:
        parts = max(1, triton.cdiv(columns, max(TILE, 4 * places)))
        columns = parts * k
        written += columns * 4
        if parts == 1:
            return rows * read, rows * written
        read += columns * (4 + size)

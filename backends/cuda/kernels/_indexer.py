"""Scores of one tile of index keys for a few query rows: one block-scaled product, then the heads in order.

Keys are the rows of the product and (query row, head) its columns, so a thread holds all heads of a key in registers
when it adds them up, one after another.

How exact the product is.  A product of two e2m1 values is a multiple of 1/4 and at most 36, so the 32 of a scale group
sum to a multiple of 1/4 below 2^11: 13 bits, exact in f32 in any order.  Scales are powers of two, so a dot of up to 4
groups is exact too, in any order, while the exponents of its groups (query's plus key's) lie within 9 of each other:
9 bits apart, 13 of their own and 2 for the sum are the 24 of f32.  Beyond that the smaller groups lose bits below
2^-24 of the largest partial sum, which class A counts.  Neither depends on other rows: an element of the product is
made from its own key and its own query column, whatever the number of columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton import next_power_of_2

from tandem.accelerator.caches import require_canonical
from tandem.backends.cuda.kernels._paging import look_up
from tandem.contract.types import KVCache, QFormat, QTensor

Tensor = torch.Tensor
LEAST_COLUMNS, LEAST_DEPTH = 16, 128  # of a block-scaled product


@triton.jit
def load_keys(entry, held, DIM: tl.constexpr, WIDE: tl.constexpr):
    """Codes uint8 [KEYS, WIDE / 2] and scale bytes uint8 [KEYS, WIDE / 32] at pointers; zeros where not held."""
    byte, group = tl.arange(0, WIDE // 2)[None, :], tl.arange(0, WIDE // 32)[None, :]
    codes = tl.load(entry[:, None] + byte, mask=held[:, None] & (byte < DIM // 2), other=0)
    scales = tl.load(entry[:, None] + DIM // 2 + group, mask=held[:, None] & (group < DIM // 32), other=127)
    return codes, scales


@triton.jit
def scattered(cache, slot, ENTRY: tl.constexpr):
    """Pointers at cache slots, and which of them hold something."""
    return cache + slot.to(tl.int64) * ENTRY, slot >= 0


@triton.jit
def consecutive(
    cache, table_row, columns, start, stop, BLOCK_ENTRIES: tl.constexpr, ENTRY: tl.constexpr, KEYS: tl.constexpr
):
    """As `scattered`, for entries from start, a multiple of KEYS, on; none from stop on is needed.

    Blocks that fit a tile are looked up once each, and addresses within them are constants.
    """
    place = tl.arange(0, KEYS)
    if KEYS % BLOCK_ENTRIES == 0 or BLOCK_ENTRIES % KEYS == 0:
        slot = look_up(start, table_row, columns, start < stop, BLOCK_ENTRIES, False)
        byte = slot.to(tl.int64) * ENTRY + place * ENTRY
        held = (slot + place * 0) >= 0
        for block in tl.static_range(BLOCK_ENTRIES, KEYS, BLOCK_ENTRIES):
            slot = look_up(start + block, table_row, columns, start + block < stop, BLOCK_ENTRIES, False)
            byte = tl.where(place < block, byte, slot.to(tl.int64) * ENTRY + (place - block) * ENTRY)
            held = tl.where(place < block, held, slot >= 0)
        return cache + (tl.multiple_of(byte, 4) if ENTRY % 4 == 0 else byte), held
    else:
        every = start + place
        return scattered(cache, look_up(every, table_row, columns, every < stop, BLOCK_ENTRIES, False), ENTRY)


@triton.jit
def load_queries(
    codes,
    scales,
    weights,
    first,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    PAD: tl.constexpr,
    DIM: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Codes [ROWS * PAD, WIDE / 2], scale bytes [ROWS * PAD, WIDE / 32] and f32 head weights [ROWS * PAD] of rows."""
    column = tl.arange(0, ROWS * PAD)
    head = (first + column // PAD).to(tl.int64) * HEADS + column % PAD
    real = column % PAD < HEADS
    byte, group = tl.arange(0, WIDE // 2)[None, :], tl.arange(0, WIDE // 32)[None, :]
    code = tl.load(codes + head[:, None] * (DIM // 2) + byte, mask=real[:, None] & (byte < DIM // 2), other=0)
    known = real[:, None] & (group < DIM // 32)
    scale = tl.load(scales + head[:, None] * (DIM // 32) + group, mask=known, other=127)
    return code, scale, tl.load(weights + head, mask=real, other=0.0).to(tl.float32)


@triton.jit
def add_in_order(total, terms, HEADS: tl.constexpr, PAD: tl.constexpr):
    """total [KEYS, ROWS] plus terms [KEYS, ROWS, PAD], the first HEADS of them one after another.

    A reduction would leave their order to the compiler.
    """
    if PAD == 1:
        return total + tl.reshape(terms, total.shape)
    else:
        halves = tl.reshape(terms, (total.shape[0], total.shape[1], 2, PAD // 2))
        low, high = tl.split(tl.permute(halves, (0, 1, 3, 2)))
        if HEADS <= PAD // 2:
            return add_in_order(total, low, HEADS, PAD // 2)
        else:
            return add_in_order(add_in_order(total, low, PAD // 2, PAD // 2), high, HEADS - PAD // 2, PAD // 2)


@triton.jit
def score(key, key_scale, query, query_scale, weight, ROWS: tl.constexpr, HEADS: tl.constexpr, PAD: tl.constexpr):
    """f32 [KEYS, ROWS]: sum over heads of weight * relu(query . key)."""
    dots = tl.dot_scaled(key, key_scale, "e2m1", tl.trans(query), query_scale, "e2m1")
    terms = tl.maximum(dots, 0.0, propagate_nan=tl.PropagateNan.ALL) * weight[None, :]
    total = tl.zeros((key.shape[0], ROWS), tl.float32)
    return add_in_order(total, tl.reshape(terms, (key.shape[0], ROWS, PAD)), HEADS, PAD)


def shape(q: QTensor, w: Tensor, cache: KVCache, op: str) -> dict[str, int]:
    """Compile-time sizes: heads and dim, and what a block-scaled product pads them to."""
    q.require(op, QFormat.MXFP4)
    require_canonical(op, cache, QFormat.MXFP4)
    heads, dim = w.shape[1], cache.layout.dim
    padded = {"PAD": max(LEAST_COLUMNS, next_power_of_2(heads)), "WIDE": max(LEAST_DEPTH, next_power_of_2(dim))}
    entry = {"BLOCK_ENTRIES": cache.layout.block_entries, "ENTRY": cache.layout.entry_bytes}
    return {"HEADS": heads, "DIM": dim} | entry | padded

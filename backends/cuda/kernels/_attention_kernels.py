"""The kernels of `sparse_attn` and `attn_block`, and which of them a call launches.

`_attend_row`: a program per row and block of heads goes over all chunks of its row.  Its traffic is the least possible.
`_attend_chunk` and `_merge_chunks`: a program per row and chunk leaves its sums in f32 memory, another merges them.
That moves five times as much, but few rows leave most of the device idle, and what is moved stays in its second-level
cache.

Queries are loaded by pointer: a tensor descriptor made in each program would cost more than its one use saves.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.accelerator.caches import require_canonical
from tandem.backends.cuda.kernels._attention import LOG2E, merge_factors, share, weigh
from tandem.backends.cuda.kernels._codec import sf_offset
from tandem.backends.cuda.kernels._rows import encode, rotate
from tandem.backends.cuda.launch import launch
from tandem.contract.types import KVCache, QTensor

Tensor = torch.Tensor
CHUNK = 128  # slots; with a head block of 64, tiles that tensor cores take whole
PART = 128  # columns of a head
HEADS = 64  # of a program that multiplies
COMBINED_HEADS = 4  # of a program that merges
SPLIT_ROWS = 64  # programs of more rows fill at least half of the processors

SPLIT_WHY = (
    "Up to 64 rows, a program for each chunk of slots shortens what one row waits for: each reads the queries again "
    "and leaves f32 sums, all of which fit the second-level cache."
)


@triton.jit
def _load_query(q, cos_sin, row, head, heads, DIM: tl.constexpr, PART: tl.constexpr, ROPE: tl.constexpr):
    """Parts of the queries of a row's heads, rotated where ROPE says so."""
    parts = ()
    for p in tl.static_range((DIM + PART - 1) // PART):
        column = p * PART + tl.arange(0, PART)
        inside = (head < heads)[:, None] & (column < DIM)[None, :]
        part = tl.load(q + (row * heads + head)[:, None] * DIM + column[None, :], mask=inside, other=0.0)
        if ROPE > 0 and (p + 1) * PART > DIM - ROPE:
            part = rotate(part.to(tl.float32), cos_sin, row, row >= 0, p * PART, DIM, ROPE, False).to(tl.bfloat16)
        parts = parts + (part,)
    return parts


@triton.jit
def _write(
    output, y, codes, scales, cos_sin, row, head, heads, first: tl.constexpr, DIM: tl.constexpr, ROPE: tl.constexpr
):
    """Columns from `first` on of the row's output f32 [R, PART]: rounded to bf16, or turned back and quantised."""
    PART: tl.constexpr = output.shape[1]
    column = first + tl.arange(0, PART)
    place = (row * heads + head)[:, None] * DIM + column[None, :]
    inside = (head < heads)[:, None] & (column < DIM)[None, :]
    rounded = output.to(tl.bfloat16)
    if codes is None:
        tl.store(y + place, rounded, mask=inside)
    else:
        value = rounded.to(tl.float32)
        if ROPE > 0 and first + PART > DIM - ROPE:
            value = rotate(value, cos_sin, row, row >= 0, first, DIM, ROPE, True).to(tl.bfloat16).to(tl.float32)
        code, exponent = encode(value, "mxfp8")
        tl.store(codes + place, code, mask=inside)
        group = first // 32 + tl.arange(0, PART // 32)
        inside = (head < heads)[:, None] & (group < DIM // 32)[None, :]
        place = sf_offset(row, head[:, None] * (DIM // 32) + group[None, :], heads * (DIM // 32))
        tl.store(scales + place, exponent.to(tl.uint8), mask=inside)


@triton.jit
def _write_filler(scales, row, groups):
    """One as the scale of the groups that fill up the row's last tile."""
    group = groups + tl.arange(0, 4)
    tl.store(scales + sf_offset(row, group, groups), tl.full((4,), 127, tl.uint8), mask=group < (groups + 3) // 4 * 4)


@triton.jit
def _attend_cache(
    q, peak, total, output, cache, slots, width, scale,
    DIM: tl.constexpr, PART: tl.constexpr, FMT: tl.constexpr, CHUNK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Go on with a row's peak, total and output over the chunks of one cache, up to its last slot that is there."""
    every = tl.arange(0, SLOTS)
    there = tl.load(slots + every, mask=every < width, other=-1) >= 0
    last = tl.max(tl.where(there, every + 1, 0), axis=0)
    # What each product needs to know of shared memory is cheap to make, but spills where it is kept for the loop.
    for start in tl.range(0, last, CHUNK, disable_licm=True):
        index = start + tl.arange(0, CHUNK)
        slot = tl.load(slots + index, mask=index < width, other=-1)
        chunk_peak, chunk_total, weights, entries = weigh(q, cache, slot, scale, DIM, PART, FMT)
        peak, old, new = merge_factors(peak, chunk_peak)
        total = total * old + chunk_total * new
        merged = ()
        for p in tl.static_range(len(q)):
            merged = merged + (output[p] * old[:, None] + tl.dot(weights, entries[p]) * new[:, None],)
            tl.debug_barrier()  # else the compiler keeps the products of all parts until the end
        output = merged
    return peak, total, output


@triton.jit
def _attend_row(
    q, cos_sin, window, window_slots, main, main_slots, sink, y, codes, scales, scale, heads, window_width, main_width,
    DIM: tl.constexpr, ROPE: tl.constexpr, WINDOW_FMT: tl.constexpr, MAIN_FMT: tl.constexpr,
    WINDOW_SLOTS: tl.constexpr, MAIN_SLOTS: tl.constexpr,
    HEADS: tl.constexpr, PART: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """A program: one row, HEADS heads, all chunks."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    query = _load_query(q, cos_sin, row, head, heads, DIM, PART, ROPE)
    peak = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    output = ()
    for _ in tl.static_range(len(query)):
        output = output + (tl.zeros((HEADS, PART), tl.float32),)
    peak, total, output = _attend_cache(
        query, peak, total, output, window, window_slots + row * window_width, window_width, scale,
        DIM, PART, WINDOW_FMT, CHUNK, WINDOW_SLOTS,
    )  # fmt: skip
    if main is not None:
        peak, total, output = _attend_cache(
            query, peak, total, output, main, main_slots + row * main_width, main_width, scale,
            DIM, PART, MAIN_FMT, CHUNK, MAIN_SLOTS,
        )  # fmt: skip
    factor = share(peak, total, tl.load(sink + head, mask=head < heads, other=0.0))
    for p in tl.static_range(len(query)):
        _write(output[p] * factor[:, None], y, codes, scales, cos_sin, row, head, heads, p * PART, DIM, ROPE)
    if codes is not None:
        _write_filler(scales, row, heads * (DIM // 32))


@triton.jit
def _leave_chunk(
    query, sums, stats, cache, slots, width, start, place, head, heads, scale,
    DIM: tl.constexpr, PART: tl.constexpr, FMT: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Leave peak, total and output of the chunk from `start` on; no output where it has no entry."""
    index = start + tl.arange(0, CHUNK)
    slot = tl.load(slots + index, mask=index < width, other=-1)
    inside = head < heads
    if tl.max(slot, axis=0) < 0:
        tl.store(stats + place * 2 * heads + head, float("-inf"), mask=inside)
        tl.store(stats + (place * 2 + 1) * heads + head, 0.0, mask=inside)
    else:
        peak, total, weights, entries = weigh(query, cache, slot, scale, DIM, PART, FMT)
        tl.store(stats + place * 2 * heads + head, peak, mask=inside)
        tl.store(stats + (place * 2 + 1) * heads + head, total, mask=inside)
        for p in tl.static_range(len(query)):
            column = p * PART + tl.arange(0, PART)
            target = (place * heads + head)[:, None] * DIM + column[None, :]
            tl.store(sums + target, tl.dot(weights, entries[p]), mask=inside[:, None] & (column < DIM)[None, :])


@triton.jit
def _attend_chunk(
    q, cos_sin, window, window_slots, main, main_slots, sums, stats, scale, heads, window_width, main_width,
    window_chunks, chunks,
    DIM: tl.constexpr, ROPE: tl.constexpr, WINDOW_FMT: tl.constexpr, MAIN_FMT: tl.constexpr,
    HEADS: tl.constexpr, PART: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """A program: one row, one chunk, HEADS heads."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    head = tl.program_id(2) * HEADS + tl.arange(0, HEADS)
    query = _load_query(q, cos_sin, row, head, heads, DIM, PART, ROPE)
    place = row * chunks + chunk
    if chunk < window_chunks:
        _leave_chunk(
            query, sums, stats, window, window_slots + row * window_width, window_width, chunk * CHUNK,
            place, head, heads, scale, DIM, PART, WINDOW_FMT, CHUNK,
        )  # fmt: skip
    else:
        _leave_chunk(
            query, sums, stats, main, main_slots + row * main_width, main_width, (chunk - window_chunks) * CHUNK,
            place, head, heads, scale, DIM, PART, MAIN_FMT, CHUNK,
        )  # fmt: skip


@triton.jit
def _merge_chunks(
    sums, stats, cos_sin, sink, y, codes, scales, heads, chunks,
    DIM: tl.constexpr, ROPE: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """A program: one row, HEADS heads; merges the chunks in their order."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    inside = head < heads
    column = tl.arange(0, WIDTH)
    peak = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    output = tl.zeros((HEADS, WIDTH), tl.float32)
    sums += row * chunks * heads * DIM
    stats += row * chunks * 2 * heads
    for chunk in range(chunks):
        chunk_peak = tl.load(stats + 2 * chunk * heads + head, mask=inside, other=float("-inf"))
        chunk_total = tl.load(stats + (2 * chunk + 1) * heads + head, mask=inside, other=0.0)
        source = (chunk * heads + head)[:, None] * DIM + column[None, :]
        there = (inside & (chunk_total != 0.0))[:, None] & (column < DIM)[None, :]
        chunk_output = tl.load(sums + source, mask=there, other=0.0)
        peak, old, new = merge_factors(peak, chunk_peak)
        total = total * old + chunk_total * new
        output = output * old[:, None] + chunk_output * new[:, None]
    factor = share(peak, total, tl.load(sink + head, mask=inside, other=0.0))
    _write(output * factor[:, None], y, codes, scales, cos_sin, row, head, heads, 0, DIM, ROPE)
    if codes is not None:
        _write_filler(scales, row, heads * (DIM // 32))


def attend(
    op: str,
    q: Tensor,
    cos_sin: Tensor | None,
    window: KVCache,
    window_slots: Tensor,
    main: KVCache | None,
    main_slots: Tensor | None,
    sink: Tensor,
    scale: float,
    target: Tensor | QTensor,
) -> None:
    """Write the attention of q, rotated before and after where there are angles, into `target`."""
    require_canonical(op, window)
    if main is None or main_slots is None:
        main = main_slots = None
    else:
        require_canonical(op, main)
    rows, heads, dim = q.shape
    widths = window_slots.shape[1], 0 if main_slots is None else main_slots.shape[1]
    first, chunks = chunk_counts(window_slots, main_slots)
    memory = (window.data, window_slots, None if main is None else main.data, main_slots)
    outputs = (None, target.data, target.scale) if isinstance(target, QTensor) else (target, None, None)
    wide = triton.next_power_of_2(dim)
    meta: dict[str, Any] = {
        "DIM": dim,
        "ROPE": 0 if cos_sin is None else cos_sin.shape[1],
        "WINDOW_FMT": window.layout.fmt.value,
        "MAIN_FMT": None if main is None else main.layout.fmt.value,
        "HEADS": min(HEADS, max(16, triton.next_power_of_2(heads))),
        "PART": min(PART, wide),
        "CHUNK": CHUNK,
        "num_warps": 8,
        "num_stages": 1,  # the entries of a chunk as bf16 leave no shared memory for those of the next
    }
    blocks = -(-heads // meta["HEADS"])
    scale *= LOG2E.value
    if not splits(rows, chunks):
        slots = [triton.next_power_of_2(max(1, width)) for width in widths]
        meta |= {"WINDOW_SLOTS": slots[0], "MAIN_SLOTS": slots[1]}
        launch(_attend_row, (rows, blocks), q, cos_sin, *memory, sink, *outputs, scale, heads, *widths, **meta)
        return
    sums = torch.empty((rows, chunks, heads, dim), dtype=torch.float32, device=q.device)
    stats = torch.empty((rows, chunks, 2, heads), dtype=torch.float32, device=q.device)
    grid = rows, chunks, blocks
    launch(_attend_chunk, grid, q, cos_sin, *memory, sums, stats, scale, heads, *widths, first, chunks, **meta)
    merges = rows, -(-heads // COMBINED_HEADS)
    shape = {"DIM": dim, "ROPE": meta["ROPE"], "WIDTH": wide, "HEADS": COMBINED_HEADS}
    launch(_merge_chunks, merges, sums, stats, cos_sin, sink, *outputs, heads, chunks, **shape, num_warps=4)


def chunk_counts(window_slots: Tensor, main_slots: Tensor | None) -> tuple[int, int]:
    """Chunks of the window and of both caches."""
    window = -(-window_slots.shape[1] // CHUNK)
    return window, window + (0 if main_slots is None else -(-main_slots.shape[1] // CHUNK))


def splits(rows: int, chunks: int) -> bool:
    """Whether each chunk has a program of its own."""
    return rows <= SPLIT_ROWS and chunks > 1


def traffic(
    q: Tensor, window: KVCache, window_slots: Tensor, main: KVCache | None, main_slots: Tensor | None, output: int
) -> tuple[int, int]:
    """Bytes read and written where every slot holds an entry; `output`: bytes of the result."""
    rows, heads, dim = q.shape
    query, read = q.numel() * 2, window_slots.numel() * (4 + window.layout.entry_bytes)
    if main is None or main_slots is None:
        main_slots = None
    else:
        read += main_slots.numel() * (4 + main.layout.entry_bytes)
    _, chunks = chunk_counts(window_slots, main_slots)
    if not splits(rows, chunks):
        return query + read, output
    sums = rows * chunks * heads * (dim + 2) * 4
    return query * chunks + read + sums, sums + output

"""The kernels of `sparse_attn` and `attn_block`, and which of them a call launches.

`_walk`: a program per row and block of heads goes over all chunks of its row.  Its traffic is the least possible.
`_partial` and `_combine`: a program per row and chunk leaves its sums in f32 memory, another merges them.  That moves
about ten times as much, but few rows fill the device, and what is moved stays in its second-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels._attention import (
    LOG2E,
    load_part,
    merge_factors,
    rotate_part,
    share,
    weigh,
)
from tandem.backends.cuda.kernels._codec import mxfp8_groups, sf_offset
from tandem.backends.cuda.launch import launch
from tandem.contract.types import CANONICAL, KVCache, QFormat, QTensor
from tandem.errors import LayoutError

Tensor = torch.Tensor
CHUNK = 128
HEADS = 64  # of a program that multiplies
PART = 128
SPLIT_ROWS = 64  # more rows than this have a program each for half of the processors or more
COMBINED_HEADS = 4


@triton.jit
def _load_query(q, cos_sin, row, head, heads, DIM: tl.constexpr, PART: tl.constexpr, ROPE: tl.constexpr):
    """Parts of the queries of a row's heads, rotated where ROPE says so."""
    parts = ()
    for p in tl.static_range((DIM + PART - 1) // PART):
        column = p * PART + tl.arange(0, PART)
        inside = (head < heads)[:, None] & (column < DIM)[None, :]
        part = tl.load(q + (row * heads + head)[:, None] * DIM + column[None, :], mask=inside, other=0.0)
        if ROPE:
            part = rotate_part(part, cos_sin + row * ROPE, p * PART, DIM, ROPE, 1.0)
        parts = parts + (part,)
    return parts


@triton.jit
def _write(
    output, y, codes, scales, cos_sin, row, head, heads, first: tl.constexpr, DIM: tl.constexpr, ROPE: tl.constexpr
):
    """Columns from `first` on of the row's output f32 [R, PART]: rounded to bf16, or turned back and quantised."""
    ROWS: tl.constexpr = output.shape[0]
    PART: tl.constexpr = output.shape[1]
    column = first + tl.arange(0, PART)
    place = (row * heads + head)[:, None] * DIM + column[None, :]
    inside = (head < heads)[:, None] & (column < DIM)[None, :]
    rounded = output.to(tl.bfloat16)
    if codes is None:
        tl.store(y + place, rounded, mask=inside)
    else:
        if ROPE:
            rounded = rotate_part(rounded, cos_sin + row * ROPE, first, DIM, ROPE, -1.0)
        grouped = tl.reshape(rounded.to(tl.float32), (ROWS * PART // 32, 32))
        code, exponent = mxfp8_groups(grouped)
        tl.store(codes + place, tl.reshape(code, (ROWS, PART)), mask=inside)
        group = first // 32 + tl.arange(0, PART // 32)
        inside = (head < heads)[:, None] & (group < DIM // 32)[None, :]
        place = sf_offset(row, head[:, None] * (DIM // 32) + group[None, :], heads * (DIM // 32))
        tl.store(scales + place, tl.reshape(exponent, (ROWS, PART // 32)).to(tl.uint8), mask=inside)


@triton.jit
def _write_filler(scales, row, groups):
    """One as the scale of the groups that fill up the row's last tile."""
    group = groups + tl.arange(0, 4)
    tl.store(scales + sf_offset(row, group, groups), tl.full((4,), 127, tl.uint8), mask=group < (groups + 3) // 4 * 4)


@triton.jit
def _walk_cache(
    q, peak, total, output, cache, slots, width, scale,
    DIM: tl.constexpr, PART: tl.constexpr, FP4: tl.constexpr, CHUNK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Go on with a row's peak, total and output over the chunks of one cache, up to its last slot that is there."""
    every = tl.arange(0, SLOTS)
    there = tl.load(slots + every, mask=every < width, other=-1) >= 0
    last = tl.max(tl.where(there, every + 1, 0), axis=0)
    for start in tl.range(0, last, CHUNK, disable_licm=True):
        index = start + tl.arange(0, CHUNK)
        slot = tl.load(slots + index, mask=index < width, other=-1)
        chunk_peak, chunk_total, weights, entries = weigh(q, cache, slot, scale, DIM, PART, FP4)
        peak, old, new = merge_factors(peak, chunk_peak)
        total = total * old + chunk_total * new
        merged = ()
        for p in tl.static_range(len(q)):
            merged = merged + (output[p] * old[:, None] + tl.dot(weights, entries[p]) * new[:, None],)
            tl.debug_barrier()
        output = merged
    return peak, total, output


@triton.jit
def _walk(
    q, cos_sin, window, window_slots, main, main_slots, sink, y, codes, scales, scale, heads, window_width, main_width,
    DIM: tl.constexpr, ROPE: tl.constexpr, WINDOW_FP4: tl.constexpr, MAIN_FP4: tl.constexpr,
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
    for p in tl.static_range(len(query)):
        output = output + (tl.zeros((HEADS, PART), tl.float32),)
    peak, total, output = _walk_cache(
        query, peak, total, output, window, window_slots + row * window_width, window_width, scale,
        DIM, PART, WINDOW_FP4, CHUNK, WINDOW_SLOTS,
    )  # fmt: skip
    if main is not None:
        peak, total, output = _walk_cache(
            query, peak, total, output, main, main_slots + row * main_width, main_width, scale,
            DIM, PART, MAIN_FP4, CHUNK, MAIN_SLOTS,
        )  # fmt: skip
    factor = share(peak, total, tl.load(sink + head, mask=head < heads, other=0.0))
    for p in tl.static_range(len(query)):
        _write(output[p] * factor[:, None], y, codes, scales, cos_sin, row, head, heads, p * PART, DIM, ROPE)
    if codes is not None:
        _write_filler(scales, row, heads * (DIM // 32))


@triton.jit
def _partial_chunk(
    query, sums, stats, cache, slots, width, start, place, head, heads, scale,
    DIM: tl.constexpr, PART: tl.constexpr, FP4: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Leave peak, total and output of the chunk from `start` on; no output where it has no entry."""
    index = start + tl.arange(0, CHUNK)
    slot = tl.load(slots + index, mask=index < width, other=-1)
    inside = head < heads
    if tl.max(slot, axis=0) < 0:
        tl.store(stats + place * 2 * heads + head, float("-inf"), mask=inside)
        tl.store(stats + (place * 2 + 1) * heads + head, 0.0, mask=inside)
    else:
        peak, total, weights, entries = weigh(query, cache, slot, scale, DIM, PART, FP4)
        tl.store(stats + place * 2 * heads + head, peak, mask=inside)
        tl.store(stats + (place * 2 + 1) * heads + head, total, mask=inside)
        for p in tl.static_range(len(query)):
            column = p * PART + tl.arange(0, PART)
            target = (place * heads + head)[:, None] * DIM + column[None, :]
            tl.store(sums + target, tl.dot(weights, entries[p]), mask=inside[:, None] & (column < DIM)[None, :])


@triton.jit
def _partial(
    q, cos_sin, window, window_slots, main, main_slots, sums, stats, scale, heads, window_width, main_width,
    window_chunks, chunks,
    DIM: tl.constexpr, ROPE: tl.constexpr, WINDOW_FP4: tl.constexpr, MAIN_FP4: tl.constexpr,
    HEADS: tl.constexpr, PART: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """A program: one row, one chunk, HEADS heads."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    head = tl.program_id(2) * HEADS + tl.arange(0, HEADS)
    query = _load_query(q, cos_sin, row, head, heads, DIM, PART, ROPE)
    place = row * chunks + chunk
    if chunk < window_chunks:
        _partial_chunk(
            query, sums, stats, window, window_slots + row * window_width, window_width, chunk * CHUNK,
            place, head, heads, scale, DIM, PART, WINDOW_FP4, CHUNK,
        )  # fmt: skip
    else:
        _partial_chunk(
            query, sums, stats, main, main_slots + row * main_width, main_width, (chunk - window_chunks) * CHUNK,
            place, head, heads, scale, DIM, PART, MAIN_FP4, CHUNK,
        )  # fmt: skip


@triton.jit
def _combine(
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
    for chunk in range(chunks):
        place = row * chunks + chunk
        chunk_peak = tl.load(stats + place * 2 * heads + head, mask=inside, other=float("-inf"))
        chunk_total = tl.load(stats + (place * 2 + 1) * heads + head, mask=inside, other=0.0)
        source = (place * heads + head)[:, None] * DIM + column[None, :]
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
    caches: tuple[tuple[KVCache, Tensor], ...],
    sink: Tensor,
    scale: float,
    target: Tensor | QTensor,
) -> None:
    """Attention over the window cache and perhaps the main cache, each with its slots [T, width], into `target`."""
    rows, heads, dim = q.shape
    for cache, _ in caches:
        _require(op, cache, dim)
    (window, window_slots), (main, main_slots) = (*caches, (None, None))[:2]
    quantised = isinstance(target, QTensor)
    y, codes, scales = (None, target.data, target.scale) if quantised else (target, None, None)
    rope = 0 if cos_sin is None else cos_sin.shape[1]
    widths = window_slots.shape[1], 0 if main_slots is None else main_slots.shape[1]
    window_chunks, main_chunks = (-(-width // CHUNK) for width in widths)
    chunks = window_chunks + main_chunks
    block = min(HEADS, max(16, triton.next_power_of_2(heads)))
    shape = {
        "DIM": dim, "ROPE": rope, "HEADS": block, "PART": min(PART, triton.next_power_of_2(dim)), "CHUNK": CHUNK,
        "WINDOW_FP4": window.layout.fmt is QFormat.NVFP4,
        "MAIN_FP4": main is not None and main.layout.fmt is QFormat.NVFP4,
    }  # fmt: skip
    memory = window.data, window_slots, None if main is None else main.data, main_slots
    if rows > SPLIT_ROWS or chunks == 1:
        slots = {
            "WINDOW_SLOTS": triton.next_power_of_2(widths[0]),
            "MAIN_SLOTS": triton.next_power_of_2(widths[1]),
        }
        launch(
            _walk, (rows, -(-heads // block)), q, cos_sin, *memory, sink, y, codes, scales,
            scale * LOG2E.value, heads, *widths, **shape, **slots, num_warps=8, num_stages=1,
        )  # fmt: skip
        return
    sums = torch.empty((rows, chunks, heads, dim), dtype=torch.float32, device=q.device)
    stats = torch.empty((rows, chunks, 2, heads), dtype=torch.float32, device=q.device)
    launch(
        _partial, (rows, chunks, -(-heads // block)), q, cos_sin, *memory, sums, stats,
        scale * LOG2E.value, heads, *widths, window_chunks, chunks, **shape, num_warps=8,
    )  # fmt: skip
    launch(
        _combine, (rows, -(-heads // COMBINED_HEADS)), sums, stats, cos_sin, sink, y, codes, scales, heads, chunks,
        DIM=dim, ROPE=rope, WIDTH=triton.next_power_of_2(dim), HEADS=COMBINED_HEADS, num_warps=4,
    )  # fmt: skip


def _require(op: str, cache: KVCache, dim: int) -> None:
    layout = cache.layout
    if cache.memory_layout == CANONICAL and layout.fmt in (QFormat.MXFP8, QFormat.NVFP4) and dim % 32 == 0:
        return
    raise LayoutError(
        f"'{op}' got a cache it does not read",
        where=f"op '{op}', {layout.kind.value} cache",
        why=f"it holds {layout.fmt.value} with dim {dim} in memory layout '{cache.memory_layout}'",
        fix=f"allocate an mxfp8 or nvfp4 cache in memory layout '{CANONICAL}' with a dim that is a multiple of 32",
    )

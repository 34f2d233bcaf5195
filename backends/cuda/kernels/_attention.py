"""Attention of one row's heads over cache entries, in pieces that kernels put together.

The slots of a row are cut into chunks, the window's first, then the main cache's.  Each chunk gives a peak, a sum of
weights and an output of its own, and chunks are merged one after another.  Whether one program walks over the chunks
or each has its own program, the operations and their order are the same, and so are the bits.  That is why a chunk
starts from nothing instead of going on from the chunk before, as a product with an accumulator would.

The width of a head is cut into parts: an accumulator of all of it would fill tensor memory, and its copy in registers
would spill.  A part of the entries is decoded once, into shared memory, and read from there as key and as value.
Tuples hold one array per part.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.backends.cuda.kernels._codec import e4m3_decode, ue8m0_value

LOG2E = tl.constexpr(1.4426950408889634)
TWO_126 = tl.constexpr(8.507059173023462e37)


@triton.jit
def e2m1_bf16(code):
    """e2m1 codes 0..15 (int32) -> bf16.

    The three bits of a magnitude, moved to where bf16 has the last bit of its exponent and the first of its mantissa,
    are the value times 2^-126, subnormals included: a shift and a product that is exact.
    """
    bits = ((code & 7) << 6) | ((code & 8) << 12)
    return bits.to(tl.int16).to(tl.bfloat16, bitcast=True) * TWO_126


@triton.jit
def load_part(cache, slot, first: tl.constexpr, DIM: tl.constexpr, PART: tl.constexpr, FMT: tl.constexpr):
    """Columns first..first + PART of the entries at slots int32 [R] as bf16 [R, PART], zeros for slot -1.

    Code and scale have at most four significant bits each, so their product in bf16 is exact; bf16 is multiplied two
    at a time and needs no conversion before the matrix product.
    """
    GROUP: tl.constexpr = 16 if FMT == "nvfp4" else 32
    PACKED: tl.constexpr = 1 if FMT == "mxfp8" else 2  # elements in a byte
    CODES: tl.constexpr = DIM // PACKED
    byte = first // PACKED + tl.arange(0, PART // PACKED)[None, :]
    group = first // GROUP + tl.arange(0, PART // GROUP)[None, :]
    entry = cache + (tl.maximum(slot, 0).to(tl.int64) * (CODES + DIM // GROUP))[:, None]
    there = (slot >= 0)[:, None]
    code = tl.load(entry + byte, mask=there if DIM % PART == 0 else there & (byte < CODES), other=0)
    scale = tl.load(entry + CODES + group, mask=there if DIM % PART == 0 else there & (group < DIM // GROUP), other=0)
    if FMT == "mxfp8":
        value = code.to(tl.float8e4nv, bitcast=True).to(tl.bfloat16)
    else:
        wide = code.to(tl.int32)
        value = tl.join(e2m1_bf16(wide & 15), e2m1_bf16(wide >> 4))
    if FMT == "nvfp4":
        factor = e4m3_decode(scale).to(tl.bfloat16)
    else:
        factor = ue8m0_value(scale.to(tl.int32)).to(tl.bfloat16)
    grouped = tl.reshape(value, (slot.shape[0], PART // GROUP, GROUP)) * factor[:, :, None]
    return tl.reshape(grouped, (slot.shape[0], PART))


@triton.jit
def weigh(q, cache, slot, scale, DIM: tl.constexpr, PART: tl.constexpr, FMT: tl.constexpr):
    """Peak f32 [heads], sum of weights f32 [heads], weights bf16 [heads, R] and entries of one chunk of slots [R].

    q: a tuple of bf16 [heads, PART]; scale: that of the scores times log2(e), as weights are powers of two.
    """
    scores = tl.zeros((q[0].shape[0], slot.shape[0]), tl.float32)
    entries = ()
    for p in tl.static_range(len(q)):
        part = load_part(cache, slot, p * PART, DIM, PART, FMT)
        scores = tl.dot(q[p], tl.trans(part), scores)
        entries = entries + (part,)
    scores = tl.where((slot >= 0)[None, :], scores * scale, float("-inf"))
    peak = tl.max(scores, axis=1)
    weights = tl.exp2(scores - finite(peak)[:, None])
    return peak, tl.sum(weights, axis=1), weights.to(tl.bfloat16), entries


@triton.jit
def finite(peak):
    """A peak that can be subtracted; that of no entries is -inf."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def merge_factors(peak, chunk_peak):
    """The peak of two sets of entries, and what the sums of each are multiplied by before they are added.

    A chunk without entries changes no bit but the sign of a zero.
    """
    top = tl.maximum(peak, chunk_peak)
    return top, tl.exp2(peak - finite(top)), tl.exp2(chunk_peak - finite(top))


@triton.jit
def share(peak, total, sink):
    """What sums [heads] of weighted entries are multiplied by, at the end, so that weights and the sink's make one."""
    sink = sink * LOG2E
    top = tl.maximum(peak, sink)
    weight = tl.exp2(peak - top)
    return tl.where(total == 0.0, 0.0, weight / (total * weight + tl.exp2(sink - top)))

"""Where min-p, top-p and top-k cut a row of logits, found without a sort.

The filters keep a prefix of the order (logit descending, id ascending): the keys above a bound and, of the tokens at
the bound itself, the first few by id.  The bound lies in a bracket (lo, hi] of images of logits that each pass cuts
into sixteen parts: its programs sum weight and number of the tokens above each of sixteen thresholds, and those of the
next pass keep the part in which the filters begin to hold.  The first pass spaces its thresholds by value, where most
rows have their bound; eight more, spaced by image, close any bracket of 32 bits.  Sums are integers, so their order
is free.  Programs of a row whose bracket is closed end at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.backends.cuda.kernels._elementary import exp_negative
from tandem.backends.cuda.kernels._sampling import (
    GREEDY_BELOW,
    UNBOUNDED,
    image,
    integer_weight,
    inverse_temperature,
    of_32_bits,
    part_of,
    scaled_logit,
)

PASSES = 9
PARTS = tl.constexpr(16)
FIELDS = tl.constexpr(6)  # of a row's state: lo, hi, weight and number of tokens above hi, limit, tokens kept at hi
STEP = tl.constexpr(1.4)  # fifteen of these below the maximum a weight is 0


@triton.jit
def row_peak(best, top, row, splits, SPLITS: tl.constexpr):
    """(maximum f32, lowest id of it, whether it is finite and the row has no NaN), from the parts of its chunks."""
    chunk = tl.arange(0, SPLITS)
    value = tl.load(best + row * splits + chunk, mask=chunk < splits, other=float("-inf"))
    spoilt = tl.max((value != value).to(tl.int32))
    value = tl.where(value != value, float("-inf"), value)
    peak = tl.max(value)
    at = tl.load(top + row * splits + chunk, mask=(chunk < splits) & (value == peak), other=0x7FFFFFFF)
    return peak, tl.min(at), (spoilt == 0) & (tl.abs(peak) < float("inf"))


@triton.jit
def least_weight(min_p, row):
    """Smallest weight int32 that min-p leaves: 4 * w >= round(min_p * 2^32)."""
    if min_p is None:
        least = 0
    else:
        least = ((of_32_bits(tl.load(min_p + row)) + 3) >> 2).to(tl.int32)
    return least


@triton.jit
def graded(x, peak, inverse, least):
    """(exponential f32, weight int32, whether min-p leaves it) of logits."""
    power = exp_negative(scaled_logit(x, peak, inverse))
    weight = integer_weight(power)
    return power, weight, weight >= least


@triton.jit
def _thresholds(lo, hi, peak, temperature, BY_VALUE: tl.constexpr):
    """Sixteen ascending int64 thresholds from lo on, none above hi."""
    part = tl.arange(0, PARTS).to(tl.int64)
    if BY_VALUE:
        spaced = image(peak + (part - PARTS).to(tl.float32) * (temperature * STEP)).to(tl.int64)
        return tl.where(part == 0, lo, tl.minimum(tl.maximum(spaced, lo), hi))
    return lo + ((hi - lo) * part >> 4)


@triton.jit
def _pick(values, index):
    return tl.sum(tl.where(tl.arange(0, PARTS) == index, values, 0))


@triton.jit
def _above(sums, row, splits, SPLITS: tl.constexpr):
    """A row's sums above each threshold, int64 [PARTS], from those of its chunks."""
    chunk, part = tl.arange(0, SPLITS)[:, None], tl.arange(0, PARTS)[None, :]
    place = (row * splits + chunk) * PARTS + part
    return tl.sum(tl.load(sums + place, mask=(chunk < splits) & (part < PARTS), other=0).to(tl.int64), axis=0)


@triton.jit
def narrowed(
    state, weights, counts, row, splits, peak, temperature, top_p, top_k,
    AFTER_FIRST: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The state of a row (see FIELDS) after a pass; tokens kept are -1 while the bracket is open.

    A closed bracket has the bound in hi; nothing is kept there where the bound is only what lies below.
    """
    field = state + row * FIELDS
    lo, hi, above = tl.load(field), tl.load(field + 1), tl.load(field + 2)
    count, limit, keep = tl.load(field + 3), tl.load(field + 4), tl.load(field + 5)
    if keep < 0:
        threshold = _thresholds(lo, hi, peak, temperature, AFTER_FIRST)
        weight = above + _above(weights, row, splits, SPLITS)
        number = count + _above(counts, row, splits, SPLITS)
        if AFTER_FIRST:
            limit = part_of(of_32_bits(tl.load(top_p + row)), _pick(weight, 0))
        most = tl.load(top_k + row).to(tl.int64)
        most = tl.where(most < 1, 0x7FFFFFFFFFFFFFFF, most)
        failing = tl.sum(((weight > limit) | (number >= most)).to(tl.int32))
        moved = failing < PARTS
        hi = tl.where(moved, _pick(threshold, failing), hi)
        above = tl.where(moved, _pick(weight, failing), above)
        count = tl.where(moved, _pick(number, failing), count)
        lo = tl.where(failing > 0, _pick(threshold, failing - 1), lo)
        inside = _pick(number, failing - 1) - count
        tied = tl.maximum(inside, 1)
        each = (_pick(weight, failing - 1) - above) // tied  # where all inside have one key
        room = tl.where(each > 0, (limit - above) // tl.maximum(each, 1) + 1, tied)
        one_key = hi - lo == 1
        below = (failing == 0) | ((inside == 1) & (hi - lo != 1))
        keep = tl.where(one_key, tl.minimum(tl.minimum(room, tied), most - count), tl.where(below, 0, -1).to(tl.int64))
        hi = tl.where(below, lo, hi)
    return lo, hi, above, count, limit, keep


@triton.jit
def search(
    logits, stride, vocab, temperature, top_p, top_k, min_p, best, top, state, weights, counts,
    next_state, next_weights, next_counts, splits,
    PASS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One pass over one chunk of one row; PASS is 0, 1 or, for all that follow, 2."""
    row, chunk = (tl.program_id(0) // splits).to(tl.int64), tl.program_id(0) % splits
    peak, _first, valid = row_peak(best, top, row, splits, SPLITS)
    heat = tl.load(temperature + row)
    if PASS == 0:
        zero = row * 0
        lo, hi, above, count, limit = zero + UNBOUNDED, zero + image(peak), zero, zero, zero
        keep = tl.where(valid & (heat >= GREEDY_BELOW), zero - 1, zero + 1)
    else:
        lo, hi, above, count, limit, keep = narrowed(
            state, weights, counts, row, splits, peak, heat, top_p, top_k, PASS == 1, SPLITS
        )
    if chunk == 0:
        field = next_state + row * FIELDS
        tl.store(field, lo)
        tl.store(field + 1, hi)
        tl.store(field + 2, above)
        tl.store(field + 3, count)
        tl.store(field + 4, limit)
        tl.store(field + 5, keep)
    if keep < 0:
        threshold = _thresholds(lo, hi, peak, heat, PASS == 0).to(tl.int32)
        inverse, least = inverse_temperature(heat), least_weight(min_p, row)
        weight_above, count_above = tl.zeros((PARTS,), tl.int64), tl.zeros((PARTS,), tl.int32)
        for start in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), BLOCK):
            token = chunk * CHUNK + start + tl.arange(0, BLOCK)
            x = tl.load(logits + row * stride + token, mask=token < vocab, other=float("-inf"))
            key = image(x)
            inside = (token < vocab) & (key > lo) & (key <= hi)
            if tl.max(inside.to(tl.int32)) > 0:
                _power, weight, alive = graded(x, peak, inverse, least)
                weight = tl.where(alive, weight, 0).to(tl.int64)
                beyond = inside[:, None] & (key[:, None] > threshold[None, :])
                weight_above += tl.sum(tl.where(beyond, weight[:, None], 0), axis=0)
                count_above += tl.sum(beyond.to(tl.int32), axis=0)
        place = (row * splits + chunk) * PARTS + tl.arange(0, PARTS)
        tl.store(next_weights + place, weight_above)
        tl.store(next_counts + place, count_above)

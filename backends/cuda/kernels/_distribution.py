"""The distribution that a row of logits is drawn from, measured in chunks of fixed width.

`measure` runs the passes that all ops that draw have in common: the maximum of each row, where filters are on the
search for their cut, and sums over what is left.  A chunk's width depends on the vocabulary alone, each program reads
one chunk of one row, and the ops' own kernels combine the parts of a row in one order: a row's bits do not depend on
how many rows there are.  Rows with a NaN or without a finite maximum have no sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from tandem.accelerator.strided import with_stride
from tandem.backends.cuda.kernels._elementary import exp_negative
from tandem.backends.cuda.kernels._filters import (
    FIELDS,
    PARTS,
    PASSES,
    graded,
    least_weight,
    narrowed,
    row_peak,
    search,
)
from tandem.backends.cuda.kernels._sampling import (
    GREEDY_BELOW,
    HEAVIEST,
    NOWHERE,
    UNBOUNDED,
    image,
    inverse_temperature,
    log_of_one_plus,
    preimage,
)
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
BLOCK = 1024  # tokens that a program holds at a time
NARROW = 512  # the same in the search, which compares each with sixteen thresholds
WARPS = 8
SMALLEST_CHUNK, MOST_CHUNKS = 4096, 64


@triton.jit
def _peaks(logits, stride, vocab, best, top, splits, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Maximum of one chunk of one row, NaN where it holds one, and the lowest id of it."""
    row, chunk = (tl.program_id(0) // splits).to(tl.int64), tl.program_id(0) % splits
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    at = tl.full((BLOCK,), NOWHERE, tl.int32)
    spoilt = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), BLOCK):
        token = chunk * CHUNK + start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * stride + token, mask=token < vocab, other=float("-inf"))
        spoilt = spoilt | (x != x).to(tl.int32)
        at = tl.where(x > high, token, at)
        high = tl.where(x > high, x, high)
    peak = tl.max(high)
    tl.store(top + row * splits + chunk, tl.min(tl.where(high == peak, at, NOWHERE)))
    tl.store(best + row * splits + chunk, tl.where(tl.max(spoilt) > 0, float("nan"), peak))


@triton.jit
def _measure(
    logits, stride, vocab, temperature, top_p, top_k, min_p, best, top, state, weights, counts,
    cut, kept, ties, heavy, spread, raw, splits,
    FILTERED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Sums over one chunk of one row of what the filters leave; where `raw` is given, also of all tokens.

    Tokens at the bound are counted, not summed: how many of them are left depends on the chunks before.  The best
    token is in no sum of exponentials, for its share is exactly 1.
    """
    row, chunk = (tl.program_id(0) // splits).to(tl.int64), tl.program_id(0) % splits
    peak, first, valid = row_peak(best, top, row, splits, SPLITS)
    heat = tl.load(temperature + row)
    inverse, least = inverse_temperature(heat), least_weight(min_p, row)
    if FILTERED:
        _, wide_bound, _, _, _, wide_keep = narrowed(
            state, weights, counts, row, splits, peak, heat, top_p, top_k, False, SPLITS
        )
        bound, keep = wide_bound.to(tl.int32), wide_keep.to(tl.int32)
    else:
        greedy = heat < GREEDY_BELOW
        bound, keep = tl.where(greedy, image(peak), UNBOUNDED), greedy.to(tl.int32)
    if chunk == 0:
        tl.store(cut + row * 2, bound)
        tl.store(cut + row * 2 + 1, keep)
    if valid:
        kept_sum, tie_count = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int32)
        heaviest = tl.full((BLOCK,), NOWHERE, tl.int32)
        spread_sum, raw_sum = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
        for start in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), BLOCK):
            token = chunk * CHUNK + start + tl.arange(0, BLOCK)
            x = tl.load(logits + row * stride + token, mask=token < vocab, other=float("-inf"))
            power, weight, alive = graded(x, peak, inverse, least)
            key = image(x)
            over = (token < vocab) & alive & (key > bound)
            tie = (token < vocab) & (key == bound) & (keep > 0)
            kept_sum += tl.where(over, weight, 0)
            tie_count += tie.to(tl.int32)
            heaviest = tl.where((over | tie) & (weight == HEAVIEST), tl.minimum(heaviest, token), heaviest)
            spread_sum += tl.where(over & (token != first), power, 0.0)
            if raw is not None:
                raw_sum += tl.where(token != first, exp_negative(x - peak), 0.0)
        place = row * splits + chunk
        tl.store(kept + place, tl.sum(kept_sum))
        tl.store(ties + place, tl.sum(tie_count))
        tl.store(heavy + place, tl.min(heaviest))
        tl.store(spread + place, tl.sum(spread_sum))
        if raw is not None:
            tl.store(raw + place, tl.sum(raw_sum))


@triton.jit
def chunk_sums(kept, ties, row, splits, bound, keep, peak, inverse, least, SPLITS: tl.constexpr):
    """Of each chunk of a row: kept weight int64 [SPLITS], and tokens at the bound before it int32 [SPLITS].

    Also the exponential of all kept tokens at the bound, f64.
    """
    chunk = tl.arange(0, SPLITS)
    number = tl.load(ties + row * splits + chunk, mask=chunk < splits, other=0)
    before = tl.cumsum(number, axis=0) - number
    taken = tl.minimum(tl.maximum(keep - before, 0), number)
    power, weight, alive = graded(tl.where(keep > 0, preimage(bound), peak), peak, inverse, least)
    sums = tl.load(kept + row * splits + chunk, mask=chunk < splits, other=0)
    sums += tl.where(alive, weight, 0).to(tl.int64) * taken
    return sums, before, tl.where(alive, power, 0.0).to(tl.float64) * tl.sum(taken)


@triton.jit
def log_of_all(sums, row, splits, more, SPLITS: tl.constexpr):
    """log(1 + sum of exponentials) f64, from a row's sums by chunk and what is to be added to them, f64."""
    chunk = tl.arange(0, SPLITS)
    part = tl.load(sums + row * splits + chunk, mask=chunk < splits, other=0.0).to(tl.float64)
    return log_of_one_plus(tl.sum(part) + more)


@triton.jit
def log_of_kept(spread, row, splits, bound, keep, peak, tied, SPLITS: tl.constexpr):
    """The same of what the filters leave; tied: third result of `chunk_sums`, of which the best may be a part."""
    best_is_tied = (keep > 0) & (bound == image(peak))
    return log_of_all(spread, row, splits, tl.where(best_is_tied, tied - 1.0, tied), SPLITS)


@triton.jit
def kept_tokens(key, alive, inside, bound, keep, before):
    """(which of a block's tokens are kept, tokens at the bound up to its end); before: those before the block."""
    tie = inside & (key == bound) & (keep > 0)
    rank = before + tl.cumsum(tie.to(tl.int32), axis=0) - 1
    return inside & alive & ((key > bound) | (tie & (rank < keep))), before + tl.sum(tie.to(tl.int32))


@triton.jit
def kept_weights(row_logits, vocab, token, peak, inverse, least, bound, keep, before):
    """(weights int64 of a block of tokens, 0 where not kept; tokens at the bound up to its end)."""
    x = tl.load(row_logits + token, mask=token < vocab, other=float("-inf"))
    _power, weight, alive = graded(x, peak, inverse, least)
    kept, before = kept_tokens(image(x), alive, token < vocab, bound, keep, before)
    return tl.where(kept, weight, 0).to(tl.int64), before


@triton.jit
def row_numbers(temperature, min_p, cut, row):
    """(inverse temperature, least weight that min-p leaves, bound, tokens kept at it) of a row."""
    inverse = inverse_temperature(tl.load(temperature + row))
    return inverse, least_weight(min_p, row), tl.load(cut + row * 2), tl.load(cut + row * 2 + 1)


@triton.jit
def at_chunk(values, chunk, SPLITS: tl.constexpr):
    """One element of a tensor [SPLITS]."""
    return tl.sum(tl.where(tl.arange(0, SPLITS) == chunk, values, 0))


@dataclass(frozen=True, slots=True)
class Numbers:
    """Sampling numbers of N rows, as in `sample`; min_p may be None."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_p: Tensor | None


@dataclass(frozen=True, slots=True)
class Measured:
    """What `measure` found.

    Args:
        chunk, splits: width of a chunk, and chunks of a row.
        best, top: [N, splits] maximum and its lowest id, by chunk.
        cut: int32 [N, 2], the bound of a row and how many tokens are kept at it.
        kept, ties, heavy, spread, raw: [N, splits] kept weight above the bound int64, tokens at the bound int32, lowest
            id of weight 2^30 int32, exponentials above the bound f32, those of all tokens f32 or None.
    """

    chunk: int
    splits: int
    best: Tensor
    top: Tensor
    cut: Tensor
    kept: Tensor
    ties: Tensor
    heavy: Tensor
    spread: Tensor
    raw: Tensor | None

    def meta(self) -> dict[str, Any]:
        """Compile-time constants of a kernel that reads chunks."""
        return {"CHUNK": self.chunk, "SPLITS": triton.next_power_of_2(self.splits), "BLOCK": BLOCK, "num_warps": WARPS}


def measure(logits: Tensor, numbers: Numbers, filtered: bool, with_raw: bool) -> Measured:
    """Measure rows of logits f32 [N, V]; with_raw: sums of all tokens too."""
    rows, vocab = logits.shape
    chunk = max(SMALLEST_CHUNK, triton.next_power_of_2(triton.cdiv(vocab, MOST_CHUNKS)))
    splits = triton.cdiv(vocab, chunk)

    def parts(dtype: torch.dtype, *more: int) -> Tensor:
        return torch.empty((rows, splits, *more), dtype=dtype, device=logits.device)

    cut = torch.empty((rows, 2), dtype=torch.int32, device=logits.device)
    found = Measured(
        chunk, splits, parts(torch.float32), parts(torch.int32), cut, parts(torch.int64), parts(torch.int32),
        parts(torch.int32), parts(torch.float32), parts(torch.float32) if with_raw else None,
    )  # fmt: skip
    grid, meta = (rows * splits,), found.meta()
    line, stride = with_stride(logits)
    per_chunk = {name: meta[name] for name in ("CHUNK", "BLOCK", "num_warps")}
    launch(_peaks, grid, line, stride, vocab, found.best, found.top, splits, **per_chunk)
    settings = (numbers.temperature, numbers.top_p, numbers.top_k, numbers.min_p)
    given = (line, stride, vocab, *settings, found.best, found.top)
    last: tuple[Tensor | None, ...] = (None, None, None)
    if filtered:
        last = _bracket(given, parts, rows, splits, meta)
    sums = (found.cut, found.kept, found.ties, found.heavy, found.spread, found.raw)
    launch(_measure, grid, *given, *last, *sums, splits, FILTERED=filtered, **meta)
    return found


def _bracket(given: tuple[Any, ...], parts: Any, rows: int, splits: int, meta: dict[str, Any]) -> tuple[Tensor, ...]:
    """Run the search; state and sums of its last pass.  Each pass reads what the one before wrote, of two sets."""
    width = int(PARTS)
    sets = [
        (
            torch.empty((rows, int(FIELDS)), dtype=torch.int64, device=given[0].device),
            parts(torch.int64, width),
            parts(torch.int32, width),
        )
        for _ in range(2)
    ]
    for number in range(PASSES):
        before, after = sets[number % 2], sets[1 - number % 2]
        launch(
            search, (rows * splits,), *given, *before, *after, splits, PASS=min(number, 2), **meta | {"BLOCK": NARROW}
        )
    return sets[PASSES % 2]


def measured_bytes(logits: Tensor, filtered: bool) -> int:
    """Bytes that `measure` reads: the logits for the maxima and for the sums, and with filters once in each pass.

    Rows whose bracket closes early read less.
    """
    return logits.numel() * 4 * (2 + (PASSES if filtered else 0))

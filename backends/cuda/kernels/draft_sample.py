"""`draft_sample`: weights of all tokens and the sums of their masses by chunk, then the draw inside one chunk."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.accelerator.strided import with_stride
from tandem.backends.cuda.kernels._distribution import (
    Measured,
    Numbers,
    at_chunk,
    chunk_sums,
    kept_weights,
    measure,
    measured_bytes,
    row_numbers,
)
from tandem.backends.cuda.kernels._filters import row_peak
from tandem.backends.cuda.kernels._sampling import NOWHERE, WHOLE, chunk_of, mass, reciprocal, uniform
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
DRAFT_STREAM = tl.constexpr(1_000_000_007)


@triton.jit
def _weigh(
    logits, stride, vocab, temperature, min_p, best, top, cut, kept, ties, weights, masses, totals, splits,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Weights of one chunk of one row, 0 throughout a row that cannot be drawn from, and the sum of their masses."""
    row, chunk = (tl.program_id(0) // splits).to(tl.int64), tl.program_id(0) % splits
    peak, _first, valid = row_peak(best, top, row, splits, SPLITS)
    if valid:
        inverse, least, bound, keep = row_numbers(temperature, min_p, cut, row)
        sums, tied, _tied = chunk_sums(kept, ties, row, splits, bound, keep, peak, inverse, least, SPLITS)
        total, before = tl.sum(sums), at_chunk(tied, chunk, SPLITS)
        if chunk == 0:
            tl.store(totals + row, total)
        divisor = reciprocal(total)
        mass_sum = tl.zeros((BLOCK,), tl.int64)
        for start in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), BLOCK):
            token = chunk * CHUNK + start + tl.arange(0, BLOCK)
            weight, before = kept_weights(
                logits + row * stride, vocab, token, peak, inverse, least, bound, keep, before
            )
            mass_sum += mass(weight, total, divisor)
            tl.store(weights + row * vocab + token, weight.to(tl.int32), mask=token < vocab)
        tl.store(masses + row * splits + chunk, tl.sum(mass_sum))
    else:
        for start in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), BLOCK):
            token = chunk * CHUNK + start + tl.arange(0, BLOCK)
            tl.store(weights + row * vocab + token, tl.zeros((BLOCK,), tl.int32), mask=token < vocab)


@triton.jit
def _propose(
    weights, vocab, seed, position, best, top, heavy, masses, totals, token_out, splits,
    COUPLED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The token of one row; what is missing to 2^42 belongs to the lowest id of the largest weight."""
    row = tl.program_id(0).to(tl.int64)
    _peak, _first, valid = row_peak(best, top, row, splits, SPLITS)
    drawn = -1
    if valid:
        at = tl.arange(0, SPLITS)
        favourite = tl.min(tl.load(heavy + row * splits + at, mask=at < splits, other=NOWHERE))
        sums = tl.load(masses + row * splits + at, mask=at < splits, other=0)
        missing = -tl.sum(sums) + WHOLE
        sums += tl.where(at == favourite // CHUNK, missing, 0)
        stream = tl.load(seed + row)
        if not COUPLED:
            stream += DRAFT_STREAM
        target = (uniform(stream, tl.load(position + row), 0) >> 11).to(tl.int64)
        chunk, line = chunk_of(sums, target, SPLITS)
        total = tl.load(totals + row)
        divisor = reciprocal(total)
        drawn = chunk * CHUNK
        for start in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), BLOCK):
            token = chunk * CHUNK + start + tl.arange(0, BLOCK)
            weight = tl.load(weights + row * vocab + token, mask=token < vocab, other=0)
            share = mass(weight.to(tl.int64), total, divisor) + tl.where(token == favourite, missing, 0)
            drawn += tl.sum((line + tl.cumsum(share, axis=0) <= target).to(tl.int32))
            line += tl.sum(share)
    tl.store(token_out + row, drawn)


def draft_sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
    coupled: bool,
    filtered: bool,
) -> tuple[Tensor, Tensor]:
    """See core/ops/draft_sample.py."""
    rows, vocab = logits.shape
    found = measure(logits, Numbers(temperature, top_p, top_k, min_p), filtered, False)
    weights = torch.empty((rows, vocab), dtype=torch.int32, device=logits.device)
    masses, totals = torch.empty_like(found.kept), torch.empty_like(seed)
    launch(
        _weigh, (rows * found.splits,), *with_stride(logits), vocab, temperature, min_p, found.best, found.top,
        found.cut, found.kept, found.ties, weights, masses, totals, found.splits, **found.meta(),
    )  # fmt: skip
    return _draw(found, weights, masses, totals, seed, position, coupled), weights


def _draw(
    found: Measured, weights: Tensor, masses: Tensor, totals: Tensor, seed: Tensor, position: Tensor, coupled: bool
) -> Tensor:
    token = torch.empty(weights.shape[0], dtype=torch.int32, device=weights.device)
    launch(
        _propose, token.shape, weights, weights.shape[1], seed, position, found.best, found.top, found.heavy, masses,
        totals, token, found.splits, COUPLED=coupled, **found.meta(),
    )  # fmt: skip
    return token


def _traffic(logits: Tensor, filtered: bool, **others: Any) -> tuple[int, int]:
    """Beside `measure`, the logits once and one chunk of the weights a row."""
    size = logits.numel() * 4
    return measured_bytes(logits, filtered) + size, size + logits.shape[0] * 4


OPS: dict[str, Any] = {"draft_sample": draft_sample}
TRAFFIC: dict[str, Any] = {"draft_sample": _traffic}
WHY: dict[str, str] = {
    "draft_sample": "weights need the maximum and masses the sum of weights before them; up to 200 rows stay in L2"
}

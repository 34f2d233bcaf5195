"""`sample`: a row's token is found by its chunk's part of the line, then inside that chunk."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.accelerator.strided import with_stride
from tandem.backends.cuda.kernels._distribution import (
    SMALLEST_CHUNK,
    Numbers,
    at_chunk,
    chunk_sums,
    kept_weights,
    log_of_all,
    log_of_kept,
    measure,
    measured_bytes,
    row_numbers,
)
from tandem.backends.cuda.kernels._filters import row_peak
from tandem.backends.cuda.kernels._sampling import chunk_of, scaled_logit, scaled_uniform, uniform
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor


@triton.jit
def _sample(
    logits, stride, vocab, temperature, min_p, seed, position, best, top, cut, kept, ties, spread, raw,
    token_out, raw_out, logprob_out, splits,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One row: the chunk that holds the target, the token inside it, and its log-probabilities."""
    row = tl.program_id(0).to(tl.int64)
    peak, _first, valid = row_peak(best, top, row, splits, SPLITS)
    if valid:
        inverse, least, bound, keep = row_numbers(temperature, min_p, cut, row)
        sums, tied, tied_power = chunk_sums(kept, ties, row, splits, bound, keep, peak, inverse, least, SPLITS)
        number = uniform(tl.load(seed + row), tl.load(position + row), 0)
        target = scaled_uniform(number, tl.sum(sums))
        chunk, line = chunk_of(sums, target, SPLITS)
        before = at_chunk(tied, chunk, SPLITS)
        drawn = chunk * CHUNK
        for start in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), BLOCK):
            token = chunk * CHUNK + start + tl.arange(0, BLOCK)
            weight, before = kept_weights(
                logits + row * stride, vocab, token, peak, inverse, least, bound, keep, before
            )
            drawn += tl.sum((line + tl.cumsum(weight, axis=0) <= target).to(tl.int32))
            line += tl.sum(weight)
        x = tl.load(logits + row * stride + drawn)
        raw_log = log_of_all(raw, row, splits, 0.0, SPLITS)
        log = log_of_kept(spread, row, splits, bound, keep, peak, tied_power, SPLITS)
        tl.store(token_out + row, drawn)
        tl.store(raw_out + row, ((x - peak).to(tl.float64) - raw_log).to(tl.float32))
        tl.store(logprob_out + row, (scaled_logit(x, peak, inverse).to(tl.float64) - log).to(tl.float32))
    else:
        tl.store(token_out + row, -1)
        tl.store(raw_out + row, float("nan"))
        tl.store(logprob_out + row, float("nan"))


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    seed: Tensor,
    position: Tensor,
    filtered: bool,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See core/ops/sample.py."""
    rows, vocab = logits.shape
    found = measure(logits, Numbers(temperature, top_p, top_k, min_p), filtered, True)
    token = torch.empty(rows, dtype=torch.int32, device=logits.device)
    raw, logprob = torch.empty_like(temperature), torch.empty_like(temperature)
    launch(
        _sample, (rows,), *with_stride(logits), vocab, temperature, min_p, seed, position, found.best, found.top,
        found.cut, found.kept, found.ties, found.spread, found.raw, token, raw, logprob, found.splits, **found.meta(),
    )  # fmt: skip
    return token, raw, logprob


def _traffic(logits: Tensor, filtered: bool, **others: Any) -> tuple[int, int]:
    """Beside `measure`, one chunk a row."""
    rows = logits.shape[0]
    return measured_bytes(logits, filtered) + rows * 4 * SMALLEST_CHUNK, rows * 12


OPS: dict[str, Any] = {"sample": sample}
TRAFFIC: dict[str, Any] = {"sample": _traffic}
WHY: dict[str, str] = {
    "sample": "weights need the maximum before them, and filters up to nine passes; up to 200 rows stay in L2"
}

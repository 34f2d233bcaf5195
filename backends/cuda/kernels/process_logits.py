"""`process_logits`: one pass over the logits behind the sums of `_distribution.measure`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.accelerator.strided import with_stride
from tandem.backends.cuda.kernels._distribution import (
    Numbers,
    at_chunk,
    chunk_sums,
    kept_tokens,
    log_of_kept,
    measure,
    measured_bytes,
    row_numbers,
)
from tandem.backends.cuda.kernels._filters import graded, row_peak
from tandem.backends.cuda.kernels._sampling import image, scaled_logit
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor


@triton.jit
def _process(
    logits, stride, vocab, temperature, min_p, best, top, cut, kept, ties, spread, out, splits,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Log-probabilities of one chunk of one row."""
    row, chunk = (tl.program_id(0) // splits).to(tl.int64), tl.program_id(0) % splits
    peak, _first, valid = row_peak(best, top, row, splits, SPLITS)
    inverse, least, bound, keep = row_numbers(temperature, min_p, cut, row)
    log, before = 0.0, 0
    if valid:
        _sums, tied, tied_power = chunk_sums(kept, ties, row, splits, bound, keep, peak, inverse, least, SPLITS)
        log = log_of_kept(spread, row, splits, bound, keep, peak, tied_power, SPLITS).to(tl.float32)
        before = at_chunk(tied, chunk, SPLITS)
    for start in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), BLOCK):
        token = chunk * CHUNK + start + tl.arange(0, BLOCK)
        inside = token < vocab
        value = tl.full((BLOCK,), float("nan"), tl.float32)
        if valid:
            x = tl.load(logits + row * stride + token, mask=inside, other=float("-inf"))
            _power, _weight, alive = graded(x, peak, inverse, least)
            left, before = kept_tokens(image(x), alive, inside, bound, keep, before)
            value = tl.where(left, scaled_logit(x, peak, inverse) - log, float("-inf"))
        tl.store(out + row * vocab + token, value, mask=inside)


def process_logits(
    logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, filtered: bool, min_p: Tensor | None = None
) -> Tensor:
    """See core/ops/process_logits.py."""
    rows, vocab = logits.shape
    found = measure(logits, Numbers(temperature, top_p, top_k, min_p), filtered, False)
    out = torch.empty((rows, vocab), dtype=torch.float32, device=logits.device)
    launch(
        _process, (rows * found.splits,), *with_stride(logits), vocab, temperature, min_p, found.best, found.top,
        found.cut, found.kept, found.ties, found.spread, out, found.splits, **found.meta(),
    )  # fmt: skip
    return out


def _traffic(logits: Tensor, filtered: bool, **others: Any) -> tuple[int, int]:
    """Beside `measure`, the logits once."""
    return measured_bytes(logits, filtered) + logits.numel() * 4, logits.numel() * 4


OPS: dict[str, Any] = {"process_logits": process_logits}
TRAFFIC: dict[str, Any] = {"process_logits": _traffic}
WHY: dict[str, str] = {
    "process_logits": "the sum of a row stands before its results, and weights need the maximum; 200 rows stay in L2"
}

"""The distribution that a row of logits is drawn from, shared by the ops that draw."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tandem.ops._fixed_cdf import kept_tokens, weights

Tensor = torch.Tensor

GREEDY_BELOW = 1e-5


class Distribution(NamedTuple):
    """Of R rows over V tokens.

    raw f32 [R, V]: logit minus the row maximum; scaled f32 [R, V]: raw * (1 / temperature); weight int64
    [R, V]: integer weight, 0 for removed tokens; kept bool [R, V]; top int64 [R, 1]: lowest id of the
    maximum; valid bool [R]: the row has a finite maximum and no NaN.  Rows that are not valid hold finite
    filler.
    """

    raw: Tensor
    scaled: Tensor
    weight: Tensor
    kept: Tensor
    top: Tensor
    valid: Tensor


def distribution(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    filtered: bool,
    min_p: Tensor | None = None,
) -> Distribution:
    """Rows of `sample`'s arguments -> `Distribution`.

    A temperature below 1e-5 is the limit 0: all of the probability is on the lowest id of the maximum.
    """
    vocab = logits.shape[1]
    valid = torch.isfinite(logits.amax(-1))  # a NaN in the row is its maximum
    clean = torch.where(valid.unsqueeze(-1), logits, 0.0)
    best = clean.amax(-1, keepdim=True)
    ids = torch.arange(vocab, device=logits.device)
    top = torch.where(clean == best, ids, vocab).amin(-1, keepdim=True)
    greedy = (temperature < GREEDY_BELOW).unsqueeze(-1)
    inverse = torch.where(greedy, 1.0, temperature.unsqueeze(-1)).reciprocal()
    raw = clean - best
    # An inverse temperature may underflow to 0, and -inf * 0 would be NaN.
    scaled = torch.where(clean == float("-inf"), clean, raw * inverse)
    weight = weights(scaled)
    kept = ~greedy | (ids == top)
    if filtered:
        kept = torch.where(greedy, kept, kept_tokens(clean, weight, top_p, top_k, min_p))
    return Distribution(raw, scaled, torch.where(kept, weight, 0), kept, top, valid)


def log_normaliser(scaled: Tensor, kept: Tensor | None, top: Tensor) -> Tensor:
    """log of the sum of exp(scaled) over kept tokens (None: all), f32 [R, 1].

    The maximum contributes exactly 1 and is left to log1p, so that a peaked row keeps its relative
    precision.
    """
    others = torch.exp(scaled).scatter(1, top, 0.0)
    if kept is not None:
        others = torch.where(kept, others, 0.0)
    return torch.log1p(_fixed_order_sum(others))


def _fixed_order_sum(x: Tensor) -> Tensor:
    """Sum over the last axis as a tree of fixed shape, [R, V] -> [R, 1].

    A library sum may be split among threads when there are few rows; then a row's bits depend on its
    neighbours.
    """
    width = x.shape[1]
    x = torch.nn.functional.pad(x, (0, (1 << (width - 1).bit_length()) - width))
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        x = x[:, :half] + x[:, half:]
    return x

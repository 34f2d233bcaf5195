"""Numbers of whole models, each with its sample size and what that size can show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

Z95 = 1.959963984540054  # 97.5th percentile of the normal law
RESAMPLES = 2000
SEED = 20240607  # of the bootstrap: the same logits give the same interval


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% confidence interval and sample size."""

    value: float
    low: float
    high: float
    n: int

    def to_json(self) -> dict[str, float | int]:
        """JSON values."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


def wilson(hits: int, n: int) -> Estimate:
    """Share hits/n with Wilson's 95% score interval; n = 0 says nothing: [0, 1]."""
    if n == 0:
        return Estimate(0.0, 0.0, 1.0, 0)
    share, z2 = hits / n, Z95 * Z95
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return Estimate(share, max(0.0, centre - half), min(1.0, centre + half), n)


def bootstrap_mean(values: Array) -> Estimate:
    """Mean of f64 [n] with the 95% percentile interval of resampled means; n = 0 gives zeros."""
    n = len(values)
    if n == 0:
        return Estimate(0.0, 0.0, 0.0, 0)
    draws = np.random.default_rng(SEED).integers(0, n, (RESAMPLES, n))
    means = np.asarray(values)[draws].mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return Estimate(float(np.mean(values)), float(low), float(high), n)


def smallest_detectable(n: int) -> float:
    """Upper end of Wilson's interval for no disagreement in n positions: lower rates may have stayed unseen."""
    return wilson(0, n).high


def log_softmax(logits: Array) -> Array:
    """Log-probabilities in float64 of logits [..., V]."""
    wide = np.asarray(logits, dtype=np.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def kl(one: Array, two: Array) -> Array:
    """KL(one || two) of each row of logits [n, V], in nats; banned tokens (-inf) of `one` add nothing."""
    a, b = log_softmax(one), log_softmax(two)
    with np.errstate(invalid="ignore"):
        terms = np.exp(a) * (a - b)
    result: Array = np.where(np.isneginf(a), 0.0, terms).sum(axis=-1)
    return result


@dataclass(frozen=True)
class ModelLevel:
    """Agreement of the logits of two runs over the same positions.

    Args:
        divergence: mean KL(A || B), nats.
        greatest: greatest KL of a position.
        agreement: share of positions with the same argmax.
        detectable: rates of disagreement below this may stay unseen in so many positions.
    """

    divergence: Estimate
    greatest: float
    agreement: Estimate
    detectable: float

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "kl": self.divergence.to_json(),
            "greatest_kl": self.greatest,
            "top1": self.agreement.to_json(),
            "smallest_detectable": self.detectable,
        }


def model_level(one: Array, two: Array) -> ModelLevel:
    """Compare logits [n, V] of two runs; rows that hold a NaN count as disagreement and have no KL."""
    usable = np.isfinite(one.max(axis=-1, initial=-np.inf)) & np.isfinite(two.max(axis=-1, initial=-np.inf))
    each = kl(one[usable], two[usable])
    same = (one.argmax(axis=-1) == two.argmax(axis=-1)) & usable
    return ModelLevel(
        bootstrap_mean(each),
        float(each.max(initial=0.0)),
        wilson(int(same.sum()), len(one)),
        smallest_detectable(len(one)),
    )

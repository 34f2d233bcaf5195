"""The course of a training run: which phase a step belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from tools.train_nano.fakequant import Precision


@dataclass(frozen=True, slots=True)
class Phases:
    """Shares of the run, 0 to 1, at which things begin.

    Args:
        weights: quantised weights.
        sparse: attention to selected entries only; the indexer has learnt from full attention until then.
        activations: quantised activations and caches.
        long: rows of twice the length, half as many.
        pull: weights are drawn onto the stored grid, ever harder until they lie on it.
    """

    weights: float = 0.3
    sparse: float = 0.4
    activations: float = 0.5
    long: float = 0.5
    pull: float = 0.8


@dataclass(frozen=True, slots=True)
class Phase:
    """What holds at one step."""

    precision: Precision
    sparse: bool
    long: bool
    pull: float


_HARDEST_PULL = 0.3


def phase(step: int, steps: int, phases: Phases) -> Phase:
    """The phase of a step, 0 .. steps - 1."""
    share = step / steps
    pull = max(share - phases.pull, 0.0) / max(1.0 - phases.pull, 1e-9) * _HARDEST_PULL
    precision = Precision(share >= phases.weights, share >= phases.activations, fast=True)
    return Phase(precision, share >= phases.sparse, share >= phases.long, pull)

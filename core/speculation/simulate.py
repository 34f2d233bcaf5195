"""What the scheduling of verified rows loses against knowing the rates of a step in advance.

The *process*: of n requests, each has a level of its own; the probability that a draft is accepted, given that
those before it are, is a logistic function of that level and of a first-order autoregressive process with a
stated correlation from one step to the next, one process for each place in the block.  A step verifies the
drafts that the step before made.  The budget sees confidences up to one step earlier and chooses by
`RateHistory.possible` and `choose_rows`; the split sees the confidences of the very drafts.

Compared, by the mean over steps of expected tokens per time, all with the same split:

    oracle   the best budget for the step's true rates and curve
    causal   the best that any budget can do without them: the expectation over the next rates, knowing the law
             of the process and its true state; what it lacks to the oracle no method can gain (by sampling, so
             it is exact only up to noise)
    none     no drafts verified
    all      all drafts verified
    lagged   the last rates taken as the next, without the history
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from tandem.errors import ConfigError
from tandem.speculation.budget import choose_rows
from tandem.speculation.history import RateHistory

F64 = npt.NDArray[np.float64]
POLICIES = ("scheduled", "oracle", "causal", "none", "all", "lagged")
SHAPES = ("flat", "linear", "steep", "knee", "stairs", "convex")
_WARM_UP = 64  # steps that fill the history and do not count
_SAMPLED = 512  # requests times sampled futures of the causal policy


@dataclass(frozen=True, slots=True)
class Process:
    """The law of the rates.

    Args:
        correlation: of the underlying process from one step to the next, 0..1.
        level: mean log-odds of acceptance.
        between: standard deviation of the requests' levels.
        within: standard deviation of the process.
        noise: standard deviation of the log-odds that confidences are wrong by; 0 means calibrated.
    """

    correlation: float
    level: float = 1.2
    between: float = 0.5
    within: float = 1.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        deviations = (self.between, self.within, self.noise)
        if not 0.0 <= self.correlation <= 1.0 or not all(0 <= value < math.inf for value in deviations):
            raise ConfigError(
                "a process of rates is not possible",
                where="Process",
                why=f"it is {self}",
                fix="use a correlation from 0 to 1 and finite deviations of at least 0",
            )

    def next_state(self, state: F64, generator: np.random.Generator) -> F64:
        """One step of the process; any shape."""
        fresh = np.sqrt(1.0 - self.correlation**2) * generator.standard_normal(state.shape)
        moved: F64 = self.correlation * state + fresh
        return moved

    def rates(self, levels: F64, state: F64) -> F64:
        """Cumulative rates [..., n, B] for levels [n] and a state [..., n, B]."""
        odds = levels[:, None] + self.within * state
        return np.asarray(np.cumprod(1.0 / (1.0 + np.exp(-odds)), axis=-1), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Mean expected tokens per time of one simulated engine, by policy.

    Args:
        correlation, batch, shape: of the process, requests, and the shape of the cost curve.
        value: tokens per time by policy.
        rows: mean rows of a step by policy.
        noise: standard error of the scheduled value, relative.
    """

    correlation: float
    batch: int
    shape: str
    value: dict[str, float]
    rows: dict[str, float]
    noise: float

    def share(self, policy: str, of: str = "oracle") -> float:
        """The value of a policy over that of another."""
        return self.value[policy] / self.value[of]


def random_curve(shape: str, batch: int, drafts: int, generator: np.random.Generator) -> F64:
    """Time by rows, float64 [batch * (1 + drafts) + 1]: random, never falling, of a given shape.

    Scales are relative to the batch, so that a curve bends where budgets lie.
    """
    rows = np.arange(batch * (1 + drafts) + 1, dtype=np.float64)
    share = rows / batch
    low, high = generator.uniform(0.5, 1.0), generator.uniform(1.0, 2.0)
    by_shape: dict[str, Callable[[], F64]] = {
        "flat": lambda: 10.0 + 0.1 * high * share,
        "linear": lambda: 4.0 * low + high * share,
        "steep": lambda: low + high * share,
        "knee": lambda: 4.0 + high * np.maximum(0.0, share - generator.uniform(1.0, 1.0 + drafts)),
        "stairs": lambda: 2.0 * low + high * np.ceil(rows / (width := int(generator.integers(2, 17)))) * width / batch,
        "convex": lambda: 2.0 * low + 0.5 * share + 0.1 * high * share**2,
    }
    curve = by_shape[shape]()
    curve += np.cumsum(generator.exponential(0.01, len(rows))) / batch  # no two curves alike
    return curve


def simulate(
    process: Process, batch: int, shape: str, *, drafts: int = 5, steps: int = 256, seed: int = 0
) -> Outcome:
    """Run one engine.

    Args:
        process: of the rates.
        batch: requests, all decoding all the time.
        shape: of the cost curve, one of `SHAPES`.
        drafts: per request and step.
        steps: that count.
        seed: of everything random.
    """
    generator = np.random.default_rng([seed, batch, SHAPES.index(shape), round(process.correlation * 1000)])
    curve = random_curve(shape, batch, drafts, generator)
    levels = process.level + process.between * generator.standard_normal(batch)
    state = generator.standard_normal((batch, drafts))
    history, slots = RateHistory(batch, drafts), np.arange(batch, dtype=np.int32)
    most = np.full(batch, drafts, dtype=np.int32)
    seconds = curve[batch:]
    tokens_per_time: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    extra_rows: dict[str, list[int]] = {policy: [] for policy in POLICIES}
    told = _confidence(process, levels, state, generator)
    for step in range(_WARM_UP + steps):
        history.record(slots, told)
        before, known = state, told
        state = process.next_state(state, generator)
        told = _confidence(process, levels, state, generator)
        if step < _WARM_UP:
            continue
        worth = _worth(process.rates(levels, state), told) / seconds
        rates, weights = history.possible(slots)
        budget = {
            "scheduled": choose_rows(rates, most, 0, curve.__getitem__, weights=weights) - batch,
            "oracle": int(worth.argmax()),
            "causal": _causal(process, levels, before, seconds, generator),
            "none": 0,
            "all": batch * drafts,
            "lagged": choose_rows(known, most, 0, curve.__getitem__) - batch,
        }
        for policy, extra in budget.items():
            tokens_per_time[policy].append(float(worth[extra]))
            extra_rows[policy].append(extra)
    value = {policy: float(np.mean(values)) for policy, values in tokens_per_time.items()}
    ratio = np.array(tokens_per_time["scheduled"]) / np.array(tokens_per_time["none"])
    return Outcome(
        process.correlation,
        batch,
        shape,
        value,
        {policy: batch + float(np.mean(extra)) for policy, extra in extra_rows.items()},
        float(ratio.std() / np.sqrt(len(ratio)) / ratio.mean()),
    )


def _confidence(process: Process, levels: F64, state: F64, generator: np.random.Generator) -> F64:
    """What the confidence head says of a state: its rates, off by the process's noise."""
    if not process.noise:
        return process.rates(levels, state)
    wrong = process.noise / max(process.within, 1e-9) * generator.standard_normal(state.shape)
    return process.rates(levels, state + wrong)


def _worth(true: F64, confident: F64) -> F64:
    """Expected tokens by extra rows, float64 [n * B + 1], when the split goes by the confidences."""
    order = np.argsort(-confident.ravel(), kind="stable")
    return len(true) + np.concatenate([[0.0], np.cumsum(true.ravel()[order])])


def _causal(
    process: Process, levels: F64, state: F64, seconds: F64, generator: np.random.Generator
) -> int:
    """The best budget for the expectation over the next state."""
    futures = max(1, _SAMPLED // len(levels))
    states = process.next_state(np.broadcast_to(state, (futures, *state.shape)), generator)
    flat = process.rates(levels, states).reshape(futures, -1)
    sums = np.cumsum(-np.sort(-flat, axis=1), axis=1).mean(axis=0)
    return int(((len(levels) + np.concatenate([[0.0], sums])) / seconds).argmax())


def sweep(
    correlations: Sequence[float],
    batches: Sequence[int],
    shapes: Sequence[str] = SHAPES,
    *,
    drafts: int = 5,
    steps: int = 256,
    seed: int = 0,
    noise: float = 0.0,
) -> list[Outcome]:
    """`simulate` over a grid, in the order of its arguments."""
    grid = [(c, batch, shape) for c in correlations for batch in batches for shape in shapes]
    return [
        simulate(Process(c, noise=noise), batch, shape, drafts=drafts, steps=steps, seed=seed)
        for c, batch, shape in tqdm(grid, desc="simulating", disable=None)
    ]

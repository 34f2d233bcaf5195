"""How many rows verify drafts in a step, and which drafts get them.

With n requests, each has one row anyway and yields one token anyway.  Rows are added in the order of falling
rates, so the expected tokens of T rows are

    E(T) = n + the T - n highest rates.

Rates are cumulative and never rise within a request, and equal ones are taken in the order of their flat index
(request, then draft); so the drafts taken from a request are always its first ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tandem.errors import ConfigError

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.integer]
Int32 = npt.NDArray[np.int32]
TimeOf = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]]

_NONE = -1.0  # rate of a place without a draft


@dataclass(frozen=True, slots=True)
class Objective:
    """What the budget is chosen for: always the most expected tokens per second, within the given bounds.

    Args:
        step_ms: longest step in milliseconds, or None.  When even one row a request takes longer, each request
            keeps its row and no draft is verified.
        token_ms: longest expected time per token in milliseconds of the request that is served worst, or None:
            the step's time over the expected tokens of that request, its row and its verified drafts.  When no
            budget reaches it, the one that comes nearest is taken.  (A bound on the mean over requests would
            decide nothing: the budget with the most tokens per second has the least mean time per token.)

    With no bound this is throughput.  Requests are never dropped for another's speed.

    Raises:
        ConfigError: a bound is not above 0.
    """

    step_ms: float | None = None
    token_ms: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("step_ms", self.step_ms), ("token_ms", self.token_ms)):
            if value is not None and not value > 0:
                raise ConfigError(
                    "a latency bound cannot be used",
                    where=f"Objective.{name}",
                    why=f"it is {value!r} milliseconds",
                    fix="give a number above 0, or none",
                )


THROUGHPUT = Objective()


def choose_rows(
    rates: Floats,
    most: Ints,
    base_rows: int,
    time_of: TimeOf,
    objective: Objective = THROUGHPUT,
    *,
    limit: int | None = None,
    weights: Floats | None = None,
) -> int:
    """Rows of all decoding requests of a step together.

    Args:
        rates: float [n, B], cumulative rates of each request's drafts, known two steps before; or [S, n, B], S
            possible ones (see `tandem.speculation.history`).  NaN and negative: no draft is there.  A request
            without any rate, but with drafts by ``most``, counts with rate 1 for each.
        most: int [n], drafts of each request that may be verified, 0..B.
        base_rows: rows of other entries (prompt chunks) of the step.
        time_of: int64 [m] rows of a whole step -> float64 [m] seconds, above 0 and never falling.
        objective: see `Objective`.
        limit: most rows to return, at least n; None for no limit.
        weights: float [S], of the possible rates, sum 1; None weighs them alike.

    Returns:
        T, n <= T.  Of budgets that are worth the same the smallest.
    """
    requests = len(most)
    if not requests:
        return 0
    usable = _usable(rates.reshape(-1, *rates.shape[-2:]), most)
    flat = usable.reshape(len(usable), -1)
    shares = np.full(len(flat), 1.0 / len(flat)) if weights is None else weights.astype(np.float64)
    drafts = int((flat >= 0).sum(axis=1).max())
    if limit is not None:
        drafts = max(0, min(drafts, limit - requests))
    descending = -np.sort(-flat, axis=1)[:, :drafts]
    expected = np.empty(drafts + 1)
    expected[0] = requests
    expected[1:] = requests + np.cumsum(shares @ np.maximum(descending, 0.0, dtype=np.float64))
    seconds = time_of(np.arange(base_rows + requests, base_rows + requests + drafts + 1))
    worth = expected / seconds
    allowed = _allowed(usable, shares, seconds, objective)
    if allowed is not None:
        worth = np.where(allowed, worth, -1.0)
    return requests + int(worth.argmax())


def split_rows(rates: Floats, most: Ints, total: int) -> Int32:
    """Divide a budget by the newest rates.

    Args:
        rates: float [n, B]; as `choose_rows`.
        most: int [n]; as `choose_rows`.
        total: rows of all requests together, at least n.

    Returns:
        int32 [n], rows of each request: 1 and its drafts among the ``total - n`` highest rates.  Rows for which
        there is no draft are left over.
    """
    usable = _usable(rates[None], most)[0]
    order = np.argsort(-usable.ravel(), kind="stable")[: max(0, total - len(most))]
    chosen = np.zeros(usable.size, dtype=np.int32)
    chosen[order] = usable.ravel()[order] >= 0
    rows: Int32 = 1 + chosen.reshape(usable.shape).sum(axis=1, dtype=np.int32)
    return rows


def _usable(rates: Floats, most: Ints) -> npt.NDArray[np.float32]:
    """float32 [S, n, B]: rates with `_NONE` where no draft may be verified."""
    known = rates >= 0  # False for NaN
    places = np.arange(rates.shape[2]) < most[:, None]
    unknown = ~known.any(axis=2, keepdims=True)
    usable: npt.NDArray[np.float32] = np.where(
        places & (known | unknown), np.where(known, rates, 1.0), _NONE
    ).astype(np.float32)
    return usable


def _allowed(
    usable: npt.NDArray[np.float32], shares: Floats, seconds: npt.NDArray[np.float64], objective: Objective
) -> npt.NDArray[np.bool_] | None:
    """bool [budgets], those within the objective's bounds, or the one nearest to them; None without bounds."""
    if objective.step_ms is None and objective.token_ms is None:
        return None
    allowed = np.ones(len(seconds), dtype=np.bool_)
    if objective.step_ms is not None:
        allowed &= seconds * 1e3 <= objective.step_ms
        allowed[0] = True
    if objective.token_ms is not None:
        mean = np.asarray(np.tensordot(shares, usable, 1), dtype=np.float64)
        per_token = seconds / _worst_served(mean, len(seconds) - 1)
        met = allowed & (per_token * 1e3 <= objective.token_ms)
        nearest = np.arange(len(seconds)) == np.where(allowed, per_token, np.inf).argmin()
        allowed = met if met.any() else nearest
    return allowed


def _worst_served(rates: npt.NDArray[np.float64], drafts: int) -> npt.NDArray[np.float64]:
    """float64 [drafts + 1]: for 0.. verified drafts, the fewest expected tokens that a request gets.

    A request with d verified drafts keeps its sum until its next draft is taken; a later sum is never lower.  So
    the minimum over the requests is that over all sums which have not ended, a running minimum from the right.
    """
    requests, places = rates.shape
    order = np.argsort(-rates.ravel(), kind="stable")
    rank = np.empty(rates.size, dtype=np.int64)
    rank[order] = np.arange(rates.size)
    until = np.full((requests, places + 1), drafts)
    until[:, :places] = np.minimum(rank.reshape(requests, places), drafts)
    sums = np.ones((requests, places + 1))
    sums[:, 1:] += np.cumsum(np.maximum(rates, 0.0), axis=1)
    fewest = np.full(drafts + 1, np.inf)
    np.minimum.at(fewest, until, sums)
    worst: npt.NDArray[np.float64] = np.minimum.accumulate(fewest[::-1])[::-1]
    return worst

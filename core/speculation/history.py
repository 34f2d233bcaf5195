"""What the rates of the next drafts may be, judged from earlier ones.

The budget of a step sees only the rates of the drafts before those that the step verifies.  Taken as they are,
they overrate what moves at random: a request whose last drafts were very good mostly has worse ones next.  And
pulling each rate to its mean underrates what the split gains by seeing the true rates.  So the expected tokens
are averaged over possible rates: the last ones, with the weight of their measured correlation c with the next,
and those of earlier steps, with 1 - c.  Both ends are exact: with c = 1 the last rates are the next; with c = 0
earlier steps are as good a sample of the next as any.  In between it is exact for one request (where expected
tokens are linear in the rates), and nearly so for many, whose ordered rates hardly change from step to step.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tandem.speculation.budget import Floats, Int32

_SORTED = 256  # requests times possible rates; with more requests their ordered rates hardly change anyway
_MEMORY = 512  # requests times steps after which a sample of the correlation counts half
_SETTLED = 8  # rates of a request before its mean is used
_ENOUGH = 64  # samples before the correlation is used


class RateHistory:
    """The newest rates of every request, and how well the last ones tell the next.

    Args:
        max_slots: request slots (R).
        drafts: draft tokens per step (B).
        depth: steps kept of each request.
    """

    def __init__(self, max_slots: int, drafts: int, depth: int = 32) -> None:
        self._depth = depth
        self._rates = np.zeros((max_slots, depth, drafts), dtype=np.float32)
        self._mean = np.zeros((max_slots, drafts))
        self._count = np.zeros(max_slots, dtype=np.int64)
        self._overall = np.ones(drafts)  # mean of all requests; before anything is known a draft counts 1
        self._seen = 0.0
        self._cross = self._square = self._samples = 0.0

    @property
    def correlation(self) -> float:
        """How much of a rate's distance from its request's mean is left one step later, 0..1; 1 until measured."""
        if self._samples < _ENOUGH or self._square <= 0.0:
            return 1.0
        return min(1.0, max(0.0, self._cross / self._square))

    def forget(self, slots: Int32) -> None:
        """Start anew with slots that hold new requests (int32 [n])."""
        self._count[slots] = 0
        self._mean[slots] = 0.0

    def record(self, slots: Int32, rates: Floats) -> None:
        """Take the rates of a step's new drafts.

        Args:
            slots: int32 [n], distinct.
            rates: float [n, B], cumulative; NaN and negative count as 0.  Requests without any are left alone.
        """
        known = rates.T >= 0  # by place: numpy is slow at reducing short rows
        made = np.logical_or.reduce(known)
        if not made.all():
            slots, rates, known = slots[made], rates[made], known[:, made]
        if not len(slots):
            return
        rates = np.where(known.T, rates, 0.0).astype(np.float32)
        count = self._count[slots]
        self._correlate(slots, rates, count)
        self._rates[slots, count % self._depth] = rates
        count = count + 1
        self._count[slots] = count
        step = 1.0 / np.minimum(count, 4 * self._depth)
        self._mean[slots] += step[:, None] * (rates - self._mean[slots])
        self._seen = min(self._seen + len(slots), 16.0 * _MEMORY)
        self._overall += len(slots) / self._seen * (np.ascontiguousarray(rates.T).mean(axis=1) - self._overall)

    def _correlate(self, slots: Int32, rates: Floats, count: npt.NDArray[np.int64]) -> None:
        settled = np.flatnonzero(count >= _SETTLED)[:_SORTED]  # a sample; it is used with few requests only
        if not len(settled):
            return
        slots, rates, count = slots[settled], rates[settled], count[settled]
        mean = self._mean[slots]
        before = self._rates[slots, (count - 1) % self._depth] - mean
        keep = _MEMORY / (_MEMORY + len(slots))
        self._cross = keep * self._cross + float((before * (rates - mean)).sum())
        self._square = keep * self._square + float((before * before).sum())
        self._samples = keep * self._samples + len(slots)

    def possible(self, slots: Int32) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
        """Rates that the next drafts of some requests may have.

        Args:
            slots: int32 [n].

        Returns:
            (float32 [S, n, B], float64 [S] weights of sum 1): the last rates first, then the last but one and so
            on.  A request with fewer steps repeats them; one without any has the mean of all requests.
        """
        correlation = self.correlation
        number = 1 if correlation >= 1.0 else max(1, min(self._depth, _SORTED // max(1, len(slots))))
        if len(slots):
            number = max(1, min(number, int(self._count[slots].max())))
        count = self._count[slots]
        back = np.arange(number)[:, None] % np.clip(count, 1, self._depth)
        rates = self._rates[slots, (count - 1 - back) % self._depth]
        rates[:, count == 0] = self._overall
        weights = np.full(number, (1.0 - correlation) / number)
        weights[0] += correlation
        return rates, weights

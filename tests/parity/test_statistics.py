"""Intervals, divergences and searches against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tandem.errors import ConfigError
from tandem.parity.ddmin import Budget, minimise
from tandem.parity.decisions import Flip
from tandem.parity.records import Record
from tandem.parity.statistics import bootstrap_mean, kl, model_level, smallest_detectable, wilson
from tandem.parity.swap import check_decision, named_flip, search


def test_wilson() -> None:
    # n = 10: centre (p + z^2/20) / (1 + z^2/10) with z^2 = 3.8415.
    none, half = wilson(0, 10), wilson(5, 10)
    assert (none.low, none.high) == (pytest.approx(0.0), pytest.approx(3.8415 / 13.8415, abs=1e-4))
    assert half.low == pytest.approx(1 - half.high)
    assert half.high - 0.5 == pytest.approx(1.95996 / 1.38415 * math.sqrt(0.025 + 3.8415 / 400), abs=1e-4)
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)


def test_what_a_sample_can_show() -> None:
    # (1 - p)^n = 5% is where n positions without a difference stop being a surprise.
    assert smallest_detectable(30) == wilson(0, 30).high == pytest.approx(3.8415 / (30 + 3.8415), rel=1e-4)
    assert smallest_detectable(30) > 0.05  # 30 questions cannot show a loss of 5%
    assert smallest_detectable(0) == 1.0


def test_divergence_of_two_tokens() -> None:
    one, two = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    assert kl(one, two)[0] == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert kl(one, one)[0] == 0.0
    banned = np.array([[0.0, -np.inf]])
    assert kl(banned, np.zeros((1, 2)))[0] == pytest.approx(math.log(2))


def test_bootstrap() -> None:
    flat = bootstrap_mean(np.full(20, 3.0))
    assert (flat.value, flat.low, flat.high, flat.n) == (3.0, 3.0, 3.0, 20)
    values = np.arange(100.0)
    mean = bootstrap_mean(values)
    error = 1.96 * values.std() / 10  # the normal approximation
    assert mean.low == pytest.approx(49.5 - error, abs=0.6)
    assert mean.high == pytest.approx(49.5 + error, abs=0.6)
    assert mean == bootstrap_mean(values)


def test_model_level() -> None:
    one = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 5.0]])
    two = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, np.nan]])
    level = model_level(one, two)
    assert level.agreement.value == pytest.approx(1 / 3)  # a NaN agrees with nothing
    assert (level.agreement.n, level.divergence.n) == (3, 2)
    assert level.greatest == pytest.approx(float(kl(one[1:2], two[1:2])[0]))


def test_delta_debugging_finds_the_pair() -> None:
    tried: list[list[int]] = []

    def works(subset: list[int]) -> bool:
        tried.append(subset)
        return {3, 11} <= set(subset)

    budget = Budget(200)
    assert minimise(range(16), works, budget) == ([3, 11], True)
    assert budget.spent == len(tried) < 60
    assert minimise(range(16), works, Budget(3))[1] is False
    assert minimise([5], works, Budget(0)) == ([5], True)


CALLS = [Record(number, 0, number, f"op{number % 3}", "site", number // 3, 1) for number in range(12)]
FLIP = Flip("entries", 12, 0, 4, "site", 0, (1,), (2,), 1.0, 1.0)


def test_swap_bisects_the_order_of_the_run() -> None:
    """Taking calls 0 to 7 restores the decision, and 7 alone does."""
    found = search(FLIP, CALLS, lambda taken: 7 in taken)
    assert (found.first, found.kept, found.minimal) == (CALLS[7], (CALLS[7],), True)
    assert found.runs == 7  # none, all, four halvings, the call alone
    assert "op 'op1' layer 2 step 0 alone restores it" in found.headline()


def test_swap_shrinks_a_set_of_several() -> None:
    found = search(FLIP, CALLS, lambda taken: {2, 7} <= taken)
    assert (found.first, found.kept, found.minimal) == (CALLS[7], (CALLS[2], CALLS[7]), True)
    assert (found.kinds(), found.layers()) == (["op1", "op2"], [0, 2])
    assert search(FLIP, CALLS, lambda taken: {2, 7} <= taken, runs=8).minimal is False


def test_swap_that_cannot_find_anything() -> None:
    outside = search(FLIP, CALLS, lambda taken: False)
    assert (outside.first, outside.kept) == (None, ())
    assert "outside the recording" in outside.headline()
    once = search(FLIP, CALLS, lambda taken: True)
    assert not once.repeats
    assert "does not flip in a second replay" in once.headline()


def test_a_decision_is_named() -> None:
    assert named_flip([FLIP], "entries:0:0") == named_flip([FLIP], "entries:0:0:4") == FLIP
    with pytest.raises(ConfigError, match="decision 'token:1:0' did not flip.*entries:0:0:4"):
        named_flip([FLIP], "token:1:0")
    for fine in ("", "entries:0:0", "token:3:1:None", "experts:0:12:4"):
        check_decision(fine)
    for wrong in ("entries", "entries:0", "entries:0:x", "entries:0:-1", "words:0:0", "entries:0:0:4:1", ":0:0"):
        with pytest.raises(ConfigError, match="names no decision.*KIND:STEP:ROW"):
            check_decision(wrong)

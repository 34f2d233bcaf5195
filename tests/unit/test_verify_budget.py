"""The budget of verified rows and its split, against plain loops over every budget."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tandem.contract.opspec import OP_TABLE
from tandem.errors import ConfigError
from tandem.speculation.budget import Objective, choose_rows, split_rows
from tandem.speculation.curve import CostCurve
from tandem.speculation.history import RateHistory
from tandem.speculation.verify import VerifyBudget


def draft_list(rates: np.ndarray, most: np.ndarray) -> list[tuple[float, int, int]]:
    """(-rate, request, place) of every draft, sorted as the rule says."""
    found = []
    for i, row in enumerate(rates.tolist()):
        unknown = all(not rate >= 0 for rate in row)
        for j, rate in enumerate(row[: most[i]]):
            if rate >= 0 or unknown:
                found.append((-(1.0 if unknown else rate), i, j))
    return sorted(found)


def by_hand(rates: np.ndarray, most: np.ndarray, base: int, seconds: np.ndarray, objective: Objective) -> int:
    """Every budget one by one."""
    drafts, n = draft_list(rates, most), len(most)
    tokens, best, nearest = [1.0] * n, None, None
    for extra in range(len(drafts) + 1):
        if extra:
            rate, i, _ = drafts[extra - 1]
            tokens[i] -= rate
        time = seconds[base + n + extra]
        if objective.step_ms is not None and extra and time * 1e3 > objective.step_ms:
            break
        slowest = time / min(tokens) * 1e3
        if nearest is None or slowest < nearest[0] - 1e-9:
            nearest = (slowest, n + extra)
        if objective.token_ms is not None and slowest > objective.token_ms:
            continue
        if best is None or sum(tokens) / time > best[0] + 1e-9:
            best = (sum(tokens) / time, n + extra)
    return best[1] if best is not None else nearest[1]


def some_rates(rng: np.random.Generator, n: int, places: int) -> np.ndarray:
    rates = np.cumprod(rng.choice([0.1, 0.5, 0.9, 1.0], (n, places)), axis=1)  # many ties
    rates[rng.random(n) < 0.2] = rng.choice([np.nan, -1.0])
    cut = np.where(rng.random(n) < 0.3, rng.integers(0, places + 1, n), places)
    rates[np.arange(places) >= cut[:, None]] = -1.0
    return rates.astype(np.float32)


@pytest.mark.parametrize(
    "objective",
    [Objective(), Objective(step_ms=60.3), Objective(token_ms=29.7), Objective(step_ms=50.3, token_ms=19.7)],
)
def test_every_budget_was_considered(objective: Objective) -> None:
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(300):
        n, places, base = int(rng.integers(1, 7)), int(rng.integers(1, 6)), int(rng.integers(0, 9))
        rates, most = some_rates(rng, n, places), rng.integers(0, places + 1, n)
        seconds = np.cumsum(rng.choice([0.0, 0.001, 0.004], 60) * rng.random(60)) + rng.choice([0.004, 0.04])
        expected = by_hand(rates, most, base, seconds, objective)
        assert choose_rows(rates, most, base, seconds.__getitem__, objective) == expected
        seen.add(expected > n)
    assert seen == {False, True}


def test_figures_by_hand() -> None:
    rates = np.array([[0.9, 0.5, 0.1], [0.8, 0.2, 0.1]], dtype=np.float32)
    most = np.array([3, 3])
    # E: 2, 2.9, 3.7, 4.2, 4.4, 4.5, 4.6 at rows 2 to 8; with time 4 + T, E/T: .333 .414 .4625 .467 .44 ...
    assert choose_rows(rates, most, 0, lambda rows: 4.0 + rows) == 5
    assert choose_rows(rates, most, 0, lambda rows: np.full(len(rows), 7.0)) == 8  # rows cost nothing
    assert choose_rows(rates, most, 0, lambda rows: 1.0 * rows) == 2  # rows never pay
    assert choose_rows(rates, most, 0, lambda rows: 4.0 + rows, limit=4) == 4
    assert choose_rows(rates, most, 0, lambda rows: 4.0 + rows, Objective(step_ms=8000.0)) == 4
    assert choose_rows(rates, most, 0, lambda rows: 4.0 + rows, Objective(step_ms=1.0)) == 2
    # Two prompt rows more: (2, 2.9, 3.7, 4.2, 4.4, 4.5)/(8 .. 13) peaks at 4.2/11 = .3818 over 3.7/10 = .37
    assert choose_rows(rates, most, 2, lambda rows: 4.0 + rows) == 5
    assert split_rows(rates, most, 5).tolist() == [3, 2]
    assert choose_rows(np.zeros((0, 3), np.float32), np.zeros(0, np.int32), 4, lambda rows: 1.0 * rows) == 0


def test_nothing_known_means_all_or_none() -> None:
    unknown = np.full((1, 3), np.nan, dtype=np.float32)
    assert choose_rows(unknown, np.array([3]), 0, lambda rows: 4.0 + rows) == 4  # counts 1 a draft
    assert choose_rows(unknown, np.array([0]), 0, lambda rows: 4.0 + rows) == 1
    assert choose_rows(unknown, np.array([2]), 0, lambda rows: 4.0 + rows) == 3


def test_possible_rates_are_weighed() -> None:
    possible = np.array([[[0.9]], [[0.1]]], dtype=np.float32)

    def pays_above_half(rows: np.ndarray) -> np.ndarray:
        return np.where(rows == 1, 1.0, 1.5)

    for share, rows in ((0.6, 2), (0.4, 1)):  # mean rate 0.58, 0.42
        assert choose_rows(possible, np.array([1]), 0, pays_above_half, weights=np.array([share, 1 - share])) == rows


def test_split_takes_first_drafts_of_the_best() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        n, places = int(rng.integers(1, 7)), int(rng.integers(1, 6))
        rates, most = some_rates(rng, n, places), rng.integers(0, places + 1, n)
        total = int(rng.integers(n, n * (1 + places) + 3))
        expected = [1] * n
        for _, i, _ in draft_list(rates, most)[: total - n]:
            expected[i] += 1
        assert split_rows(rates, most, total).tolist() == expected


def test_bounds_are_checked() -> None:
    for bad in ({"step_ms": 0.0}, {"token_ms": float("nan")}):
        with pytest.raises(ConfigError, match="latency bound"):
            Objective(**bad)


def walk(correlation: float, requests: int, steps: int, rng: np.random.Generator) -> RateHistory:
    history, slots = RateHistory(requests, 1), np.arange(requests, dtype=np.int32)
    state = rng.standard_normal((requests, 1))
    for _ in range(steps):
        state = correlation * state + np.sqrt(1 - correlation**2) * rng.standard_normal(state.shape)
        history.record(slots, 0.5 + 0.1 * np.clip(state, -4, 4))
    return history


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_history_measures_the_correlation(correlation: float) -> None:
    measured = walk(correlation, 64, 200, np.random.default_rng(3)).correlation
    assert abs(measured - correlation) < 0.08


def test_history_keeps_requests_apart() -> None:
    history, slots = walk(0.0, 4, 40, np.random.default_rng(4)), np.arange(4, dtype=np.int32)
    rates, weights = history.possible(slots)
    assert len(rates) == len(weights) == 32 and abs(weights.sum() - 1) < 1e-12 and weights[0] < 0.3
    history.forget(slots[1:2])
    fresh, _ = history.possible(slots)
    assert (fresh[:, [0, 2, 3]] == rates[:, [0, 2, 3]]).all()
    assert np.allclose(fresh[:, 1], 0.5, atol=0.05) and np.ptp(fresh[:, 1]) == 0  # the mean of all
    history.record(slots[1:2], np.array([[0.25]]))
    again, _ = history.possible(slots)
    assert (again[:, 1] == 0.25).all()
    history.record(slots, np.full((4, 1), np.nan))
    assert (history.possible(slots)[0] == again).all()


def test_a_new_history_believes_in_drafts() -> None:
    rates, weights = RateHistory(4, 3).possible(np.array([2], dtype=np.int32))
    assert rates.tolist() == [[[1.0, 1.0, 1.0]]] and weights.tolist() == [1.0]


def test_split_is_what_the_device_does() -> None:
    rng = np.random.default_rng(6)
    for _ in range(50):
        n, places = int(rng.integers(1, 7)), int(rng.integers(1, 6))
        rates = np.cumprod(rng.choice([0.3, 0.5, 1.0], (n, places)), axis=1).astype(np.float32)
        most, total = rng.integers(0, places + 1, n).astype(np.int32), int(rng.integers(n, n * (1 + places) + 1))
        slots = np.arange(n, dtype=np.int32)
        far, none = np.full(n, 1000, np.int32), np.zeros(n, np.int32)
        drafts = np.ones((n, places), np.int32)
        given = [torch.from_numpy(array) for array in (slots, rates, drafts, none, far, most)]
        counts = OP_TABLE["aux.verify_rows"].reference(*given, total)[-1]
        assert counts.tolist() == split_rows(rates, most, total).tolist()


def test_budget_of_an_engine() -> None:
    slots = np.array([0, 3], dtype=np.int32)
    assert VerifyBudget(4, 2)(slots, 5) == 6  # no curve: all
    budget = VerifyBudget(4, 2, CostCurve([(1, 5.0), (100, 104.0)]))  # 4 + rows
    assert budget(slots, 0) == 6  # drafts of which nothing is known count 1
    budget.note(slots, np.array([[0.9, 0.5], [0.2, 0.1]]))
    # 2/6, 2.9/7 = .414, 3.4/8 = .425, 3.6/9 = .4
    assert budget(slots, 0) == 4
    budget.forget(0)
    assert budget(slots, 0) > 2
    # The mean of all that was seen is (.55, .3): 2/6, 2.55/7 = .364, 2.85/8 = .356
    assert budget(slots, 0) == 3


def test_without_overlap_rates_wait_for_the_next_step() -> None:
    budgets = [VerifyBudget(2, 1, CostCurve([(1, 1.0), (9, 9.0)]), overlapped=o) for o in (True, False)]
    slots = np.array([0, 1], dtype=np.int32)
    chosen: list[list[int]] = [[], []]
    for rate in (0.1, 0.9, 0.9, 0.2, 0.4, 0.3):
        for budget, rows in zip(budgets, chosen, strict=True):
            budget.note(slots, np.full((2, 1), rate))
            rows.append(sum(np.round(budget.history.possible(slots)[0][0, :, 0], 3)))
    assert chosen[1][1:] == chosen[0][:-1] and chosen[1][0] == 2.0
    budgets[1].note(slots, np.full((2, 1), 0.7))
    budgets[1].forget(0)
    budgets[1].note(slots[:0], np.zeros((0, 1)))
    assert budgets[1].history.possible(slots)[0][0, 1, 0] == np.float32(0.7)
    assert budgets[1].history.possible(slots)[0][0, 0, 0] != np.float32(0.7)

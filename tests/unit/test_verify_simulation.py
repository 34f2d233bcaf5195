"""Confidence-scheduled verification in simulation: close to the best budget for the true rates."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest

from tandem.cli.main import main
from tandem.errors import ConfigError
from tandem.speculation.simulate import SHAPES, Outcome, Process, random_curve, simulate, sweep


def judge(outcomes: list[Outcome], noise: float) -> None:
    """The promise, cell by cell.

    Over the curves each pair of correlation and batch is within 2% of the best budget for the true rates, and so
    is each single curve, but for one or two requests whose next rates cannot be known (correlation below 0.9):
    there within 2% of what the law of the rates lets any budget reach.
    """
    cells = defaultdict(list)
    for o in outcomes:
        cells[o.correlation, o.batch].append(o.share("scheduled"))
        assert o.share("scheduled", "none") > 1 - 4 * o.noise - noise, o
        few = o.batch <= 2 and o.correlation < 0.9
        assert o.share("scheduled", "causal" if few else "oracle") > 0.98 - noise, o
        assert max(o.value, key=o.value.__getitem__) == "oracle" or o.value["oracle"] >= max(o.value.values()), o
    for cell, shares in cells.items():
        assert np.mean(shares) > 0.98 - noise, cell


def test_within_two_percent_of_knowing_the_rates() -> None:
    judge(sweep((0.0, 0.5, 0.95), (1, 3, 16, 96), steps=96, seed=1), noise=0.004)
    judge(sweep((0.0, 0.95), (512,), ("linear", "stairs"), steps=8, seed=1), noise=0.004)


@pytest.mark.slow
def test_within_two_percent_over_a_wide_grid() -> None:
    judge(sweep((0.0, 0.25, 0.5, 0.75, 0.9, 1.0), (1, 2, 4, 8, 32, 128, 512), steps=256, seed=2), noise=0.003)


def test_the_history_earns_its_keep() -> None:
    """Rates at random from step to step: taking the last for the next is worse, by more than 2% of the oracle."""
    outcome = simulate(Process(0.0), 1, "steep", steps=1000, seed=5)
    assert outcome.share("lagged") < 0.98 < outcome.share("scheduled", "causal")
    assert outcome.share("scheduled") > outcome.share("lagged") + 0.005


def test_wrong_confidences_cost_little() -> None:
    for shape in SHAPES:
        outcome = simulate(Process(0.9, noise=0.3), 16, shape, steps=64)
        assert outcome.share("scheduled") > 0.96 and outcome.share("scheduled", "none") > 0.98


def test_process_has_the_stated_correlation() -> None:
    rng, process = np.random.default_rng(0), Process(0.7)
    before = rng.standard_normal((400, 5))
    after = process.next_state(before, rng)
    assert np.corrcoef(before.ravel(), after.ravel())[0, 1] == pytest.approx(0.7, abs=0.03)
    assert after.std() == pytest.approx(1.0, abs=0.05)
    rates = process.rates(np.zeros(2), np.zeros((2, 3)))
    assert np.allclose(rates, [[0.5, 0.25, 0.125]] * 2)  # log-odds 0


@pytest.mark.parametrize("shape", SHAPES)
def test_curves_never_fall(shape: str) -> None:
    curves = [random_curve(shape, batch, 5, np.random.default_rng(batch)) for batch in (1, 7, 7, 64)]
    for curve in curves:
        assert curve.min() > 0 and (np.diff(curve) >= 0).all()
    assert len(curves[1]) == 7 * 6 + 1


def test_bad_processes_are_refused() -> None:
    nan, known = float("nan"), {"correlation": 0.5}
    noises = [{**known, "noise": noise} for noise in (-1.0, nan, float("inf"))]
    for bad in ({"correlation": 1.5}, {"correlation": -0.1}, {"correlation": nan}, {**known, "within": nan}, *noises):
        with pytest.raises(ConfigError, match="process"):
            Process(**bad)


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["bench", "verify-schedule", "--correlations", "0.5", "--batches", "2", "8", "--steps", "4"]
    assert main([*small, "--shapes", "linear", "flat"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 + 1 and lines[2].split()[:2] == ["0.50", "2"]
    assert main([*small, "--shapes", "linear", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [cell["batch"] for cell in found] == [2, 8] and found[0]["of_oracle"]["oracle"] == 1.0
    assert main(["bench", "verify-schedule", "--correlations", "2"]) == 2

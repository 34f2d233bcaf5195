"""The law of rejection sampling, the figures of a measurement, the fit of the confidence."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tools.train_nano.acceptance import Steps, calibration_error, distribution, draw, reliability, report, verify
from tools.train_nano.draft import fit_logistic

# Weights, in eighths, of three tokens after the one before; None begins.  All thresholds that rejection sampling
# derives from them are multiples of 1/24, so a grid of uniform numbers gives exact probabilities.
TARGET = {None: (4, 3, 1), 0: (2, 2, 4), 1: (8, 0, 0), 2: (1, 5, 2)}
DRAFT = {None: (2, 2, 4), 0: (4, 4, 0), 1: (1, 1, 6), 2: (1, 5, 2)}
GRID = 24


def test_rejection_sampling_follows_the_target() -> None:
    """Every pair of drafts and every point of the grid, with its probability."""
    uniform = torch.cartesian_prod(*[(torch.arange(GRID) + 0.5) / GRID] * 3)
    law: dict[tuple[int, ...], float] = {}
    reached = dict.fromkeys([(), *((x,) for x in range(3)), *itertools.product(range(3), repeat=2)], 0.0)
    for one, two in itertools.product(range(3), repeat=2):
        chance = DRAFT[None][one] / 8 * DRAFT[one][two] / 8 / GRID**3
        if chance == 0.0:
            continue
        p = torch.tensor([DRAFT[None], DRAFT[one]]).expand(GRID**3, -1, -1) / 8
        q = torch.tensor([TARGET[None], TARGET[one], TARGET[two]]).expand(GRID**3, -1, -1) / 8
        accepted, token = verify(torch.tensor([[one, two]]).expand(GRID**3, -1), p, q, uniform)
        for count in range(3):
            tokens = torch.bincount(token[accepted == count], minlength=3)
            for x in range(3):
                emitted = (*(one, two)[:count], x)
                for length in range(count + 1):
                    reached[emitted[:length]] += chance * int(tokens[x])
                    law[emitted[: length + 1]] = law.get(emitted[: length + 1], 0.0) + chance * int(tokens[x])
    assert reached[()] == pytest.approx(1.0)
    for before, total in reached.items():
        for x in range(3 if total else 0):
            share = TARGET[before[-1] if before else None][x] / 8
            assert law.get((*before, x), 0.0) / total == pytest.approx(share, abs=1e-12), (before, x)
    # The chance that the first draft is accepted: min(4, 2) + min(3, 2) + min(1, 4) eighths.
    assert sum(reached[(x,)] for x in range(3)) == pytest.approx(5 / 8)


def test_draw_never_takes_what_has_no_weight() -> None:
    p = torch.tensor([0.0, 0.1, 0.0, 0.2, 0.0])
    u = torch.tensor([0.0, 0.33, 0.34, 1.0 - 2**-24])
    assert draw(p.expand(4, -1), u).tolist() == [1, 1, 3, 3]
    assert distribution(torch.tensor([1.0, 3.0, 3.0]), 0.0).tolist() == [0.0, 1.0, 0.0]
    torch.testing.assert_close(distribution(torch.tensor([math.log(4.0), 0.0]), 0.5), torch.tensor([16.0, 1.0]) / 17)


def test_report() -> None:
    logit = torch.logit(torch.tensor([[0.95, 0.65], [0.95, 0.25], [0.65, 0.95]]))
    steps = Steps(torch.tensor([2, 1, 0]), torch.tensor([[True, True], [True, True], [True, False]]), logit)
    values = report(steps)
    assert values["accepted"] == pytest.approx(1.0)
    assert values["survival"] == pytest.approx([2 / 3, 1 / 3])
    assert values["acceptance"] == pytest.approx([2 / 3, 1 / 2])
    assert values["confidence"] == pytest.approx([0.85, 0.45])
    # Bins: 0.95 twice, both accepted; 0.65 twice, one accepted; 0.25 once, rejected.
    assert values["calibration_error"] == pytest.approx((2 * 0.05 + 2 * 0.15 + 0.25) / 5)
    bins = reliability(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    assert [part["events"] for part in bins] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert calibration_error(bins) == 0.0


def test_fit_of_the_confidence() -> None:
    """Exact probabilities give back their projection; one constant feature gives the weighted mean's logit."""
    generator = torch.Generator().manual_seed(8)
    w = torch.tensor([1.0, 0.1, -9.0, 0.5])
    x = torch.randn((200, 4), generator=generator) * torch.tensor([1.0, 10.0, 0.1, 1.0])
    fitted = fit_logistic(x, torch.sigmoid(x @ w), torch.rand(200, generator=generator), 0.0)
    torch.testing.assert_close(fitted, w, rtol=1e-4, atol=1e-4)
    constant = fit_logistic(torch.ones(2, 1), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 3.0]), 0.0)
    assert float(constant) == pytest.approx(math.log(3.0))
    assert abs(float(fit_logistic(torch.ones(2, 1), torch.ones(2), torch.ones(2), 1e6))) < 1e-5  # the prior wins

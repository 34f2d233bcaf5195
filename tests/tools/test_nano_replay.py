"""The report on bounded replay: divergences by hand, and the engine path that it measures with."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib", reason="the plots need matplotlib: pip install -e '.[train]'")

from tandem.checkpoint.tiny import make_tiny
from tools.train_nano.engine_path import EngineScorer
from tools.train_nano.report_replay import Divergence, measure_replay

LENGTH, REST = 40, 6
TEXT = torch.randint(3, 400, (LENGTH + REST + 1,), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_tiny(directory, 0, {"text_config": {"max_position_embeddings": 4096}})
    return directory


def test_divergence_by_hand() -> None:
    """Half and half against a quarter and three quarters, then the same distribution."""
    half, skew = torch.zeros(2), torch.tensor([1.0, 3.0]).log()
    found = Divergence()
    found.add(torch.stack((half, skew)), torch.stack((skew, skew)), torch.tensor([0, 1]))
    kl = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    report = found.report()
    assert (report["kl"], report["kl_max"]) == (pytest.approx(kl / 2), pytest.approx(kl))
    # The first of equal values counts as the likeliest, so the two differ there.
    assert report["tokens"] == 2 and report["top1"] == 0.5
    assert report["nats"] == pytest.approx(math.log(2.0) / 2)


def test_a_forced_continuation_has_the_logits_of_the_whole_text(model: Path) -> None:
    scorer = EngineScorer(model)
    ids = TEXT.tolist()
    assert torch.equal(scorer.continued(ids, LENGTH), scorer.logits(ids))


@pytest.mark.slow
def test_a_prompt_within_what_is_kept_costs_nothing_and_a_longer_one_something(model: Path) -> None:
    report = measure_replay(model, [TEXT], [20, LENGTH, 500], [26, 64], REST, 3)
    found = {(row["length"], row["keep"]): (row["first"], row["rest"]) for row in report["rows"]}
    assert sorted(found) == [(20, 26), (20, 64), (LENGTH, 26), (LENGTH, 64)]  # no text is long enough for 500
    for case in ((20, 26), (20, 64), (LENGTH, 64)):
        assert [part["kl_max"] for part in found[case]] == [0.0, 0.0], case
    assert found[LENGTH, 26][0]["kl"] > 0 and found[LENGTH, 26][1]["tokens"] == REST - 1

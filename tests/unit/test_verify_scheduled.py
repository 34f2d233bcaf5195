"""Verification by confidence in the engine: texts, budgets, the measured curve, alarms and figures."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engines import tokens
from support.structured_engine import COUPLED, DRAFTS, OVERLAP, PLAIN, Work, open_engine, run, same, script_drafts

from tandem.cli.main import main
from tandem.config import load_config
from tandem.engine import curve
from tandem.engine.llm import LLM
from tandem.engine.sizes import size_engine
from tandem.errors import ConfigError
from tandem.model.config import ModelConfig
from tandem.sampling.params import SamplingParams
from tandem.speculation.alarms import AlarmLimits, SpeculationMonitor
from tandem.speculation.curve import CostCurve

SCHEDULED: Mapping[str, Any] = {"speculation.verify": "scheduled"}
# Rows up to 12 cost next to nothing, each of the next as much as a step: six requests get few drafts, two get many.
POINTS = [(1, 0.010), (12, 0.0101), (13, 0.02), (24, 0.13)]
FEW_SLOTS = {"scheduler.max_slots": 6}


def requests(temperature: float, lengths: Sequence[int] = (16,) * 6, first: int = 0) -> list[Work]:
    return [
        (tokens(place, 8), SamplingParams(temperature=temperature, seed=place, max_tokens=length, ignore_eos=True))
        for place, length in enumerate(lengths, first)
    ]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Engines have the curve `POINTS`, which what they measure while running does not change."""
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(curve, "measure", lambda run_rows, most: POINTS)
    monkeypatch.setattr(CostCurve, "observe", lambda *_: None)


def budgets(llm: LLM) -> list[tuple[int, int]]:
    """From now on: decoding requests and their rows together, of every step."""
    found: list[tuple[int, int]] = []
    scheduler = llm.engine._parts.scheduler
    real = scheduler.schedule

    def schedule(most_steps: int = 1) -> Any:
        plan = real(most_steps)
        if plan.speculative:
            found.append((plan.speculative, plan.draft_rows))
        return plan

    scheduler.schedule = schedule  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize(
    "options",
    [pytest.param((DRAFTS,), id="greedy", marks=pytest.mark.slow), pytest.param((COUPLED, OVERLAP), id="coupled")],
)
def test_texts_are_those_of_plain_decoding(tiny: Path, known: None, options: tuple[Any, ...]) -> None:
    """Six requests of which four end early, so that budgets are tight first and loose later."""
    temperature = 0.0 if options == (DRAFTS,) else 1.0
    work = requests(temperature, (16, 16, 7, 7, 7, 7))
    want = run(open_engine(tiny, PLAIN, FEW_SLOTS), work)
    llm = open_engine(tiny, *options, SCHEDULED, FEW_SLOTS)
    chosen = budgets(llm)
    same(run(llm, work), want)
    six = {rows for count, rows in chosen if count == 6}
    assert six and max(six) <= 12
    assert max(rows for count, rows in chosen if count == 2) > 2 * 2  # of 8; six had two rows each on average


def test_budgets_and_texts_are_the_same_with_steps_in_flight(tiny: Path, known: None) -> None:
    """Drawn by rejection, with a curve that stays as it is: what is left to differ is when rates are known."""

    def served(first: int, more: Mapping[str, Any]) -> tuple[list[int], Any]:
        """Rows of each step while all six requests decode, and their outputs."""
        llm = open_engine(tiny, DRAFTS, SCHEDULED, FEW_SLOTS, more)
        chosen = budgets(llm)
        outputs = run(llm, requests(1.0, first=first))
        return [rows for count, rows in chosen if count == 6], outputs

    # Whether drafts are kept is up to the tiny model: take requests whose budgets are not all the same.
    tried = ((first, *served(first, {})) for first in range(0, 120, 6))
    first, full, outputs = next(found for found in tried if len(set(found[1])) > 1)
    other, others = served(first, OVERLAP)
    same(outputs, others)
    least = min(len(full), len(other))
    assert least > 3 and full[:least] == other[:least]


def test_a_curve_is_measured_once(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept under a key of slots, drafts and model; measuring leaves no counts, no prefixes, no rates."""
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(tmp_path))
    measured: list[int] = []
    real = curve.measure

    def counting(run_rows: Any, most: int) -> Any:
        measured.append(most)
        return real(run_rows, most, repeats=1, seconds=0.0)

    monkeypatch.setattr(curve, "measure", counting)
    few = {"scheduler.max_slots": 2, "cache.prefix": "on"}
    first = open_engine(tiny, DRAFTS, SCHEDULED, few)
    assert measured == [8]
    made = first.engine._parts.book.budget.curve.points  # type: ignore[union-attr]
    assert [rows for rows, _ in made] == [1, 2, 4, 8]
    assert first.engine.stats.steps == 0 and len(first.engine._parts.prefix._tree) == 0  # type: ignore[union-attr]
    assert first.engine._parts.book.budget.history._seen == 0  # type: ignore[union-attr]
    second = open_engine(tiny, DRAFTS, SCHEDULED, few)
    assert measured == [8] and second.engine._parts.book.budget.curve.points == made  # type: ignore[union-attr]
    open_engine(tiny, DRAFTS, SCHEDULED, few, OVERLAP)
    assert measured == [8]
    open_engine(tiny, DRAFTS, SCHEDULED, few, {"speculation.draft_tokens": 2})
    # Prompts of one token: eight of them need more slots than there are, so that such a step cannot be measured.
    short = open_engine(tiny, DRAFTS, SCHEDULED, few, {"model.max_model_len": 2, "cache.prefix": "off"})
    assert measured == [8, 6, 8]
    assert [rows for rows, _ in short.engine._parts.book.budget.curve.points] == [1, 2]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["step_ms", "token_ms"])
def test_latency_bounds_need_scheduling(name: str) -> None:
    with pytest.raises(ConfigError, match=f"speculation.{name}.*speculation.verify scheduled"):
        load_config(env={}, args={f"speculation.{name}": 5})
    load_config(env={}, args={f"speculation.{name}": 5, "speculation.verify": "scheduled"})


def test_drafts_that_are_always_wrong_raise_an_alarm(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line, one flag; the texts are right all the same."""
    llm = open_engine(tiny, DRAFTS)
    banned = {"logit_bias": {5: float("-inf")}, "temperature": 0.0, "ignore_eos": True}
    work = [(tokens(place, 4), SamplingParams(max_tokens=16, **banned)) for place in range(4)]
    want = run(llm, work)
    book = llm.engine._parts.book
    assert book is not None
    book.monitor = SpeculationMonitor(3, AlarmLimits(window=8, least_drafts=40))
    script_drafts(llm, dict.fromkeys(range(64), 5))
    with caplog.at_level(logging.WARNING):
        same(run(llm, work), want)
    figures = llm.engine.metrics()["speculation"]
    assert figures["low_acceptance"] is True and figures["accepted"] == 0 and figures["tested"] >= 40
    assert len([line for line in caplog.messages if "low_acceptance" in line]) == 1


def test_metrics_are_plain_values_that_add_up(tiny: Path) -> None:
    llm = open_engine(tiny, DRAFTS, {"cache.prefix": "on", "scheduler.max_slots": 2})
    engine = llm.engine
    for prompt, params in requests(0.0, (5, 6, 7)):
        engine.add_request(prompt, params)
    assert engine.metrics()["queue"] == {"waiting": 1, "queued": 2, "running": 0, "in_flight": 0}
    engine.step()
    assert engine.metrics()["queue"] == {"waiting": 1, "queued": 0, "running": 2, "in_flight": 0}
    while not engine.idle:
        engine.step()
    found = json.loads(json.dumps(engine.metrics()))
    assert found["steps"]["tokens"] == 5 + 6 + 7
    assert found["queue"] == dict.fromkeys(("waiting", "queued", "running", "in_flight"), 0)
    # Each request has one token from its prompt; the others come from steps that verify drafts.
    assert 18 - 3 <= found["speculation"]["emitted"] and found["speculation"]["scheduled"] is False
    assert found["prefix"]["queries"] == 3 and found["prefix"]["hits"] == 0
    assert found["grammars"] == dict.fromkeys(("submitted", "reused", "made", "failed", "waiting", "kept"), 0)
    plain = open_engine(tiny, PLAIN).engine.metrics()
    assert plain["speculation"] is None and plain["prefix"] is None


def test_bench_shows_the_metrics(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", str(tiny), "--prompt-tokens", "4", "--steps", "3", "--rounds", "1", "--json"]
    assert main(["bench", "decode", *flags]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]
    assert found["steps"]["tokens"] == 2 * 4 and found["speculation"]["tested"] > 0


def test_a_curve_is_measured_in_a_cache_of_one_block(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of more rows than the caches hold are left out."""
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(tmp_path))
    real = curve.measure
    monkeypatch.setattr(curve, "measure", lambda run, most: real(run, most, repeats=1, seconds=0.0))
    world = open_engine(tiny, DRAFTS, SCHEDULED, {"scheduler.max_slots": 8, "cache.num_blocks": 1})
    assert [rows for rows, _ in world.engine._parts.book.budget.curve.points] == [1, 2, 4, 8, 16]  # type: ignore[union-attr]
    # 32 rows are two prompts of a block each.


@pytest.mark.parametrize("stages", [0, 1])
def test_scheduling_needs_drafts(repo_root: Path, stages: int) -> None:
    text = ModelConfig.from_file(repo_root / "core/assets/official_config.json").text
    text = replace(text, num_nextn_predict_layers=stages)
    args: dict[str, Any] = {"speculation.verify": "scheduled"} | ({"speculation.draft_tokens": 0} if stages else {})
    with pytest.raises(ConfigError, match="draft_tokens is 0" if stages else "no draft stages"):
        size_engine(load_config(env={}, args=args), text)

"""The engine's logits, states and decisions agree with the oracle at every position; see docs/ORACLE.md.

The engine is bitwise invariant to chunk and batch, so equality of bits with one reference run is shown first, and the
reference run is then judged once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from oracle.choices import Margins
from support.agreement import NEAR_SHARE, Judge, Stats, Verdict
from support.teacher import Ask, Teacher, Trace, random_ids

from tandem.checkpoint.tiny import make_tiny

SEED = 3
LONGEST = 200
IDS = random_ids(0, LONGEST)
CHUNKS = (1, 7, 16, 64, 256)
LENGTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 199, 200)
IMAGE = 500
DRAWN = Ask(random_ids(5, 40), draws=81, params={"temperature": 1.0, "seed": 7, "ignore_eos": True})


@dataclass(frozen=True)
class Judged:
    trace: Trace
    floor: Stats
    margins: list[Margins]
    verdict: Verdict


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_tiny(directory, SEED)
    return directory


@pytest.fixture(scope="module")
def judge(model: Path) -> Judge:
    return Judge(model)


def with_images(ids: list[int]) -> Ask:
    """Three image spans, one of a single token, whose rows replace the embeddings; and one replaced text row."""
    ids, roles = list(ids), [0] * len(ids)
    embeds = {5: torch.zeros(128, dtype=torch.bfloat16)}
    generator = torch.Generator().manual_seed(3)
    for start, kinds in ((24, (3, 2, 2, 5, 2, 2, 5, 4)), (60, (3, 2, 5, 4)), (90, (2,))):
        for position, kind in enumerate(kinds, start):
            ids[position], roles[position] = IMAGE, kind
            embeds[position] = (4 * torch.randn(128, generator=generator)).bfloat16()
    return Ask(ids, roles, embeds)


@pytest.fixture(scope="module")
def run(model: Path) -> Callable[[str], Trace]:
    """Reference runs by name: one request, alone, the prompt in one step."""

    @cache
    def reference(name: str) -> Trace:
        if name == "drawn":
            ask = Ask(Teacher(model).run([DRAWN])[0].ids)
        else:
            ask = {"text": Ask(IDS), "images": with_images(IDS[:130])}[name]
        return Teacher(model).run([ask])[0]

    return reference


@pytest.fixture(scope="module")
def judged(judge: Judge, run: Callable[[str], Trace]) -> Callable[[str], Judged]:
    @cache
    def look(name: str) -> Judged:
        trace = run(name)
        floor, margins = judge.floor(trace)
        return Judged(trace, floor, margins, judge.judge(trace, floor, margins))

    return look


@pytest.mark.parametrize("name", ["text", "drawn", "images"])
def test_every_step_at_every_position(judged: Callable[[str], Judged], name: str) -> None:
    assert judged(name).verdict.findings == []


def test_few_decisions_are_too_close_to_call(
    judge: Judge, model: Path, judged: Callable[[str], Judged], record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Five more texts, so that one cluster of near ties does not decide."""
    total = sum((judged(name).verdict for name in ("text", "drawn", "images")), Verdict())
    for seed in range(10, 15):
        total += judge_text(judge, model, seed, orders=2)
    report(record_testsuite_property, "tiny model", total)
    assert total.findings == []
    assert max(total.near, total.rerun) <= NEAR_SHARE * total.positions


def report(record: Callable[[str, object], None], name: str, total: Verdict) -> None:
    """Shares of positions in the JUnit file, and on the screen with ``pytest -s``."""
    shares = {"closer than the floor": total.near, "oracle run again": total.rerun}
    for what, count in shares.items():
        record(f"{name}: {what}", f"{count} of {total.positions} positions")
        print(f"{name}: {what} at {count} of {total.positions} positions")


def judge_text(judge: Judge, model: Path, seed: int, orders: int) -> Verdict:
    trace = Teacher(model).run([Ask(random_ids(seed, LONGEST))])[0]
    floor, margins = judge.floor(trace, orders)
    return judge.judge(trace, floor, margins)


def test_logits_of_whole_runs(judge: Judge, run: Callable[[str], Trace]) -> None:
    """Without resetting the state: rounding grows, but no further than between legal orders."""
    assert judge.whole_run(run("text")) == []


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", ["text", "images"])
def test_chunks_give_the_same_bits(model: Path, run: Callable[[str], Trace], chunk: int, name: str) -> None:
    ask = {"text": Ask(IDS), "images": with_images(IDS[:130])}[name]
    assert Teacher(model, chunk).run([ask])[0].same_bits(run(name)) == []


@pytest.mark.parametrize("chunk", CHUNKS)
def test_mixed_batches_give_the_same_bits(model: Path, run: Callable[[str], Trace], chunk: int) -> None:
    """Prompts arrive while others draw; text and image requests share steps."""
    teacher = Teacher(model, chunk)
    asks = [DRAWN, Ask(IDS[:33], draws=30), Ask(IDS), with_images(IDS[:130]), Ask(random_ids(8, 70), draws=9)]
    traces = teacher.run(asks, every=1 if chunk > 16 else 3)
    assert max(teacher.watch.batches) >= 3
    assert traces[0].same_bits(run("drawn")) == []
    assert traces[1].prefix(33).same_bits(run("text").prefix(33)) == []
    assert traces[2].same_bits(run("text")) == []
    assert traces[3].same_bits(run("images")) == []


def test_lengths_give_the_same_bits(model: Path, run: Callable[[str], Trace]) -> None:
    """Each length as its own request: one after the other in reused slots, then all together."""
    teacher = Teacher(model)
    alone = [teacher.run([Ask(IDS[:length])])[0] for length in LENGTHS]
    together = Teacher(model, chunk=64).run([Ask(IDS[:length]) for length in LENGTHS])
    for length, one, other in zip(LENGTHS, alone, together, strict=True):
        assert one.same_bits(run("text").prefix(length)) == []
        assert other.same_bits(run("text").prefix(length)) == []


def test_recomputed_rows_have_the_same_bits(model: Path, run: Callable[[str], Trace]) -> None:
    """A pool with room for little more than the longest request; preempted requests start again."""
    teacher = Teacher(model, chunk=16, cache__num_blocks=15)
    traces = teacher.run([DRAWN, Ask(IDS[:60], draws=100), Ask(IDS)], every=2)
    assert teacher.engine.stats.preemptions > 0
    assert traces[0].same_bits(run("drawn")) == []
    assert traces[1].prefix(60).same_bits(run("text").prefix(60)) == []
    assert traces[2].same_bits(run("text")) == []


def test_a_prefix_is_what_the_oracle_says_of_a_shorter_request(judge: Judge, run: Callable[[str], Trace]) -> None:
    """The judgement of a long request covers short ones: nothing in the oracle's answers depends on what follows."""
    long = run("text")
    whole = judge.answer(judge.exact, long, None)
    for length in (1, 2, 9, 33, 65):
        part = judge.answer(judge.exact, long.prefix(length), None)
        assert torch.allclose(part.logits, whole.logits[:length], atol=1e-6)
        assert part.choices.indices == {layer: rows[:length] for layer, rows in whole.choices.indices.items()}


@pytest.mark.slow
@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_length(model: Path, run: Callable[[str], Trace], chunk: int) -> None:
    lengths = range(1, LONGEST + 1) if chunk > 1 else range(1, LONGEST + 1, 3)
    for one in Teacher(model, chunk).run([Ask(IDS[:n]) for n in lengths], every=1):
        assert one.same_bits(run("text").prefix(len(one))) == []


@pytest.mark.slow
def test_more_texts(
    judge: Judge, model: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    total = sum((judge_text(judge, model, seed, orders=4) for seed in range(100, 130)), Verdict())
    report(record_testsuite_property, "more texts", total)
    assert total.findings == []
    assert max(total.near, total.rerun) <= NEAR_SHARE * total.positions

"""Bounded replay: masked windows agree with the oracle, and narrowed rows with masked ones, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.agreement import Judge
from support.teacher import Ask, Teacher, Trace, random_ids

from tandem.checkpoint.tiny import make_tiny

PROMPT, KEEP, BOUNDARY, LAYERS = 60, 11, 4, 8
ASK = Ask(random_ids(8, PROMPT), draws=6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_tiny(directory, 3)
    return directory


@pytest.fixture(scope="module")
def masked(model: Path) -> Trace:
    return Teacher(model, model__swa_replay="mask", model__swa_keep=KEEP).run([ASK])[0]


def test_masked_windows_are_those_of_the_oracle(model: Path, masked: Trace) -> None:
    """Every sub-layer at every position, also of rows that `compact` would drop."""
    judge = Judge(model)
    unbounded = judge.judge(masked, judge.floor(masked, orders=1)[0])
    assert any(finding.startswith("attn") for finding in unbounded.findings)
    for oracle in (judge.exact, *judge.legal):
        oracle.bound_windows(range(BOUNDARY, LAYERS), PROMPT - KEEP)
    floor, margins = judge.floor(masked, orders=2)
    assert judge.judge(masked, floor, margins).findings == []


@pytest.mark.parametrize("chunk", [7, 256])
def test_narrowed_rows_have_the_bits_of_masked_ones(model: Path, masked: Trace, chunk: int) -> None:
    """The watch sorts logits by position; those of dropped rows are a constant."""
    teacher = Teacher(model, chunk, model__swa_replay="compact", model__swa_keep=KEEP)
    watch = teacher.watch
    watch._values = lambda seen: {}  # type: ignore[method-assign]  # sub-layers have fewer rows than the step
    trace = teacher.run([ASK])[0]
    assert trace.ids == masked.ids
    first = PROMPT - KEEP
    assert torch.equal(trace.logits[first:], masked.logits[first:])
    assert bool((trace.logits[:first] == trace.logits[0]).all())
    assert not torch.equal(trace.logits[first - 1], masked.logits[first - 1])

"""The model that comes with the package against the oracle: trained weights have peaks that random ones lack."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from support.agreement import Judge
from support.shipped import text_ids, tokenizer
from support.teacher import Ask, Teacher, Trace

from tandem.checkpoint.shipped import shipped_model
from tandem.model.config import ModelConfig
from tandem.tokenizer.chat import render_chat

LENGTH = 150


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(shipped_model())


@pytest.fixture(scope="module")
def asks() -> dict[str, Ask]:
    """A text, and a chat turn that is drawn."""
    messages = [{"role": "user", "content": "Tell me about water."}]
    drawn = {"temperature": 0.7, "seed": 7, "ignore_eos": True}
    return {
        "text": Ask(text_ids(LENGTH)),
        "chat": Ask(render_chat(messages, tokenizer()), draws=61, params=drawn),
    }


@pytest.fixture(scope="module")
def run(asks: dict[str, Ask]) -> Callable[[str], Trace]:
    """Reference runs by name: one request, alone, the prompt in one step."""
    teacher = Teacher(shipped_model())
    return cache(lambda name: teacher.run([asks[name]])[0])


def test_the_text_reaches_beyond_window_selection_and_pool() -> None:
    text = ModelConfig.from_file(shipped_model() / "config.json").text
    compressed = max(text.compress_ratios) * text.index_topk
    assert LENGTH > max(text.sliding_window, compressed, text.candidate_topk_blocks * text.candidate_block_size)


@pytest.mark.parametrize("name", ["text", "chat"])
def test_every_step_at_every_position(judge: Judge, run: Callable[[str], Trace], name: str) -> None:
    trace = run(name)
    floor, margins = judge.floor(trace)
    verdict = judge.judge(trace, floor, margins)
    print(f"shipped model, {name}: {verdict.rerun} of {verdict.positions} run again, {verdict.near} near")
    assert verdict.findings == []


def test_logits_of_a_whole_run(judge: Judge, run: Callable[[str], Trace]) -> None:
    """Without resetting the state."""
    assert judge.whole_run(run("text")) == []


def test_chunks_and_batches_give_the_same_bits(asks: dict[str, Ask], run: Callable[[str], Trace]) -> None:
    """All states and choices, not only tokens; so the judgement of the reference runs covers these."""
    teacher = Teacher(shipped_model(), chunk=16)
    traces = teacher.run([*asks.values(), Ask(text_ids(40), draws=9)], every=3)
    assert max(teacher.watch.batches) == len(traces)
    for name, trace in zip(asks, traces[:-1], strict=True):
        assert trace.same_bits(run(name)) == []
    assert traces[-1].prefix(40).same_bits(run("text").prefix(40)) == []

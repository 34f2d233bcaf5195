"""Invariance of the model that comes with the package: realistic text, drawn as people draw it."""

from __future__ import annotations

from typing import Any

import pytest
from support.engines import Job, Trace, World, arriving, same_all
from support.shipped import text_ids, tokenizer

from tandem.checkpoint.shipped import shipped_model
from tandem.engine.llm import LLM
from tandem.sampling.params import SamplingParams
from tandem.tokenizer.chat import render_chat

BLOCKS_UNDER_PRESSURE = 7  # what the longest job needs, in blocks of 16 tokens; all together need 17


def shipped_jobs() -> list[Job]:
    """Continuations of a text and a chat turn; none ends before its max_tokens."""
    fixed: dict[str, Any] = {"ignore_eos": True}
    chat = render_chat([{"role": "user", "content": "Tell me about water."}], tokenizer())
    return [
        Job(text_ids(40), SamplingParams(temperature=0.0, max_tokens=14, logprobs=2, **fixed)),
        Job(text_ids(6), SamplingParams(temperature=0.7, seed=5, max_tokens=20, **fixed)),
        Job(text_ids(97), SamplingParams(temperature=1.0, top_k=20, seed=6, max_tokens=12, **fixed)),
        Job(chat, SamplingParams(temperature=0.7, top_p=0.9, seed=7, max_tokens=24, logprobs=1, **fixed)),
        Job(text_ids(1), SamplingParams(temperature=1.0, seed=2**63 + 9, max_tokens=14, **fixed)),
    ]


@pytest.fixture(scope="module")
def alone() -> list[Trace]:
    """Each job by itself, one step at a time."""
    own = World(shipped_model())
    return [own.run([job])[0] for job in shipped_jobs()]


def test_reference_runs_draw_what_was_asked(alone: list[Trace]) -> None:
    for job, trace in zip(shipped_jobs(), alone, strict=True):
        assert len(trace.result.token_ids) == job.params.max_tokens
        assert len(trace.hidden) == len(job.prompt) + job.params.max_tokens - 1
        assert len({logits.tobytes() for logits in trace.logits.values()}) == job.params.max_tokens


@pytest.mark.parametrize(("order", "gap"), [((0, 1, 2, 3, 4), 0), ((4, 2, 0, 3, 1), 1), ((3, 1, 4, 0, 2), 5)])
def test_batches_and_arrival_orders(alone: list[Trace], order: tuple[int, ...], gap: int) -> None:
    got = World(shipped_model()).run(list(arriving(order, gap, shipped_jobs())))
    same_all(got, [alone[index] for index in order])


@pytest.mark.parametrize("chunk", [7, 16])
def test_chunk_sizes(alone: list[Trace], chunk: int) -> None:
    own = World(shipped_model(), {"scheduler.max_chunk": chunk})
    same_all(own.run(shipped_jobs()), alone)
    assert max(rows for _, _, rows in own.recorder.chunks) == chunk


def test_preemption(alone: list[Trace]) -> None:
    order = (1, 3, 4, 0, 2)
    own = World(shipped_model(), {"cache.num_blocks": BLOCKS_UNDER_PRESSURE, "scheduler.max_chunk": 16})
    same_all(own.run(list(arriving(order, 1, shipped_jobs()))), [alone[index] for index in order])
    assert own.engine.stats.preemptions > 0


def test_greedy_text_in_batches_of_one_and_eight() -> None:
    prompts = [tokenizer().decode(text_ids(3 + 2 * n, 1 + 9 * n)) for n in range(8)]
    params = SamplingParams(temperature=0.0, max_tokens=12)
    texts = []
    for slots in (1, 8):
        llm = LLM(backend="cpu", options={"model.max_model_len": 64, "scheduler.max_slots": slots})
        texts.append([result.text for result in llm.generate(prompts, params)])
        assert llm._assembly.table.max_slots == slots
        llm.close()
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1

"""Several outputs of a prompt, deadlines, priorities, and cancelling at any time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engines import tokens
from support.request_modes import COUPLED, OVERLAP, PREFIX, engine, result

from tandem.engine import waiting
from tandem.engine.async_llm import AsyncLLM
from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput
from tandem.errors import RequestError
from tandem.sampling.params import SamplingParams

DRAWN = SamplingParams(temperature=0.9, seed=2**64 - 2, max_tokens=4, ignore_eos=True, logprobs=1)
BUSY = {**OVERLAP, **COUPLED, **PREFIX, "scheduler.max_slots": 3, "scheduler.max_tokens_per_step": 24}


@pytest.fixture(scope="module")
def plain(tiny: Path) -> LLM:
    """One step at a time, no drafts, no prefix cache."""
    return engine(tiny, {"scheduler.max_slots": 3})


@pytest.fixture(scope="module")
def busy(tiny: Path) -> LLM:
    """Two steps in flight, coupled drafts, a prefix cache, prompts in pieces."""
    return engine(tiny, BUSY)


@pytest.fixture(params=[pytest.param("plain", marks=pytest.mark.slow), "busy"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    found: LLM = request.getfixturevalue(request.param)
    yield found
    while not found.engine.idle:
        found.engine.step()
    assert found._assembly.table.num_free == 3 and not found._boxes
    assert found._assembly.pools.main.num_available == found._assembly.pools.main.num_blocks


def run(llm: LLM, ids: list[int]) -> dict[int, RequestOutput]:
    """Step until nothing is left; the outputs of some requests."""
    found, streamed = {}, dict.fromkeys(ids, "")
    while not llm.engine.idle:
        for piece in llm.engine.step():
            if piece.request_id in streamed:
                streamed[piece.request_id] += piece.text
            if piece.output is not None:
                assert piece.request_id not in found  # it ends once
                found[piece.request_id] = piece.output
    for request_id, output in found.items():
        assert streamed.get(request_id, output.text) == output.text
    return found


# -- several outputs -----------------------------------------------------------------------------------------


def test_copy_i_is_the_output_of_seed_plus_i(llm: LLM, plain: LLM) -> None:
    """Seeds wrap at 2^64; four copies do not fit into three slots at once."""
    prompt = tokens(3, 40)
    outputs = llm.generate([prompt, prompt[:5]], [replace(DRAWN, n=4), DRAWN])
    assert [len(output.copies) for output in outputs] == [4, 1] and not outputs[1].others
    seeds = [replace(DRAWN, seed=seed) for seed in (2**64 - 2, 2**64 - 1, 0, 1)]
    singles = plain.generate([prompt] * 4, seeds)
    for place, (copy, single) in enumerate(zip(outputs[0].copies, singles, strict=True)):
        assert copy.copy == place and result(copy) == result(single)
    assert len({copy.token_ids for copy in outputs[0].copies}) == 4


def test_copies_begin_with_the_blocks_of_the_first(busy: LLM) -> None:
    """A prompt of 40 tokens has two blocks of 16 before its last token; each of three copies takes both."""
    assert busy._assembly.prefix is not None
    before = busy._assembly.prefix.stats()
    prompt = tokens(77, 40)
    busy.generate(prompt, replace(DRAWN, n=4, max_tokens=1))
    after = busy._assembly.prefix.stats()
    assert (after.hits - before.hits, after.hit_tokens - before.hit_tokens) == (3, 3 * 32)


def test_copies_do_not_wait_for_a_first_one_that_is_gone(busy: LLM) -> None:
    for steps in (0, 2):
        first, *others = busy.engine.add_copies(tokens(100 + steps, 40), replace(DRAWN, n=3))
        for _ in range(steps):
            busy.engine.step()
        busy.engine.cancel(first)
        found = run(busy, others)
        assert all(len(found[request].token_ids) == 4 for request in others)


def test_streams_tell_copies_apart(llm: LLM) -> None:
    want = llm.generate("one two", replace(DRAWN, n=3))[0]
    texts = {0: "", 1: "", 2: ""}
    for piece in llm.stream("one two", replace(DRAWN, n=3)):
        texts[piece.copy] += piece.text
    assert texts == {copy.copy: copy.text for copy in want.copies}
    stream = llm.stream("one two", replace(DRAWN, n=3))
    next(stream)
    stream.close()  # cancels all three
    assert not llm._boxes and llm._assembly.table.num_free == 3


def test_async_copies(tiny: Path, plain: LLM) -> None:
    want = plain.generate(tokens(3, 20), replace(DRAWN, n=3))[0]

    async def work() -> None:
        async with AsyncLLM(config=plain.config) as llm:
            found = await llm.generate(tokens(3, 20), replace(DRAWN, n=3))
            assert [result(copy) for copy in found.copies] == [result(copy) for copy in want.copies]
            async for _ in llm.stream(tokens(4, 20), replace(DRAWN, n=3)):
                break
            assert (await llm.generate(tokens(3, 20), DRAWN)).token_ids == want.token_ids

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_single_request_refuses_several_outputs(plain: LLM) -> None:
    with pytest.raises(RequestError, match="add_copies") as caught:
        plain.engine.add_request([5, 6], replace(DRAWN, n=2))
    assert caught.value.where == "SamplingParams.n"
    assert plain.engine.idle


# -- deadlines -----------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds by which the engine's clock is ahead."""
    ahead, real = [0.0], waiting.monotonic
    monkeypatch.setattr(waiting, "monotonic", lambda: real() + ahead[0])
    return ahead


def test_a_deadline_ends_a_request_with_what_it_has(llm: LLM, clock: list[float]) -> None:
    long = replace(DRAWN, max_tokens=100, deadline_s=1000.0)
    want = llm.generate(tokens(1, 20), replace(long, deadline_s=None, max_tokens=10))[0]
    late = llm.engine.add_request(tokens(1, 20), long)
    free = llm.engine.add_request(tokens(2, 20), replace(long, deadline_s=5000.0, max_tokens=7))
    for _ in range(3):
        llm.engine.step()
    clock[0] = 1001.0
    found = run(llm, [])
    assert (found[late].finish_reason, found[free].finish_reason) == ("deadline", "length")
    count = len(found[late].token_ids)
    assert 0 < count <= 10 and found[late].token_ids == want.token_ids[:count] and found[late].error is None
    assert found[late].text == llm.tokenizer.decode(found[late].token_ids)
    assert len(found[late].logprobs or ()) == count


def test_a_deadline_counts_while_a_request_waits(llm: LLM, clock: list[float]) -> None:
    """Three requests hold the slots; of two that wait one is too late, and with it the copies of another prompt."""
    held = [llm.engine.add_request(tokens(n, 5), replace(DRAWN, max_tokens=6)) for n in range(3)]
    late = llm.engine.add_request(tokens(9, 5), replace(DRAWN, deadline_s=50.0))
    copies = llm.engine.add_copies(tokens(8, 40), replace(DRAWN, n=2, deadline_s=60.0))
    patient = llm.engine.add_request(tokens(7, 5), DRAWN)
    llm.engine.step()
    clock[0] = 100.0
    pieces = {piece.request_id: piece for piece in llm.engine.step()}
    for request in (late, *copies):
        output = pieces[request].output
        assert output is not None and (output.finish_reason, output.token_ids) == ("deadline", ())
    assert {*held, patient} == set(run(llm, []))


def test_deadlines_of_ended_requests_are_dropped() -> None:
    known = set(range(1000))
    deadlines = waiting.Deadlines(known.__contains__)
    for request in range(1000):
        deadlines.add(request, 1e18 + request)
        known.discard(request - 5)
    assert len(deadlines._order) < 150
    deadlines.add(2000, None)
    assert list(deadlines.due()) == []


def test_time_left_moves_with_a_request(llm: LLM, clock: list[float]) -> None:
    request = llm.engine.add_request(tokens(1, 20), replace(DRAWN, deadline_s=1000.0))
    llm.engine.step()
    state = llm.engine.export_request(request)
    assert 900 < (state.rules.deadline_s or 0) < 1000
    llm.engine.cancel(request)
    late = replace(state, rules=replace(state.rules, deadline_s=1e-9))
    moved = llm.engine.import_request(late)
    assert run(llm, [])[moved].finish_reason == "deadline"


# -- priorities ----------------------------------------------------------------------------------------------


def test_a_lower_number_goes_first_for_slots(llm: LLM) -> None:
    """Three hold the slots; the others get one in the order of (priority, arrival)."""
    short = replace(DRAWN, max_tokens=2)
    held = [llm.engine.add_request(tokens(n, 5), replace(short, max_tokens=3)) for n in range(3)]
    wanted = [1, 0, -2, 0, -2, 5]
    ids = [llm.engine.add_request(tokens(20 + n, 5), replace(short, priority=p)) for n, p in enumerate(wanted)]
    started: list[int] = []
    while not llm.engine.idle:
        llm.engine.step()
        started += [request for request in ids if request in llm.engine._slot_of and request not in started]
    in_order = [ids[place] for place in sorted(range(6), key=lambda place: (wanted[place], place))]
    # Several may start in one step; then their order within it is not seen here, but groups of three are.
    assert set(held).isdisjoint(started)
    assert [sorted(started[at : at + 3]) for at in (0, 3)] == [sorted(in_order[at : at + 3]) for at in (0, 3)]


def test_the_last_in_order_is_put_back(tiny: Path) -> None:
    """Three requests grow to three blocks each, of seven; the highest number gives way, though it came first."""
    llm = engine(tiny, {"cache.num_blocks": 7, "scheduler.max_slots": 3})
    params = replace(DRAWN, max_tokens=12, seed=1, prompt_logprobs=0)
    last, first, middle = (llm.engine.add_request(tokens(n, 28), replace(params, priority=p))
                           for n, p in enumerate((7, -3, 2)))  # fmt: skip
    ends: list[int] = []
    found = {}
    while not llm.engine.idle:
        for piece in llm.engine.step():
            if piece.output is not None:
                ends.append(piece.request_id)
                found[piece.request_id] = piece.output
    assert ends[0] == first and found[first].preemptions == 0
    assert ends[2] == last and found[last].preemptions > 0
    assert found[middle].preemptions <= found[last].preemptions
    alone = llm.generate([tokens(place, 28) for place in range(3)], replace(params, max_tokens=5))
    for request, output in zip((last, first, middle), alone, strict=True):
        assert found[request].token_ids[:5] == output.token_ids
        assert found[request].prompt_logprobs == output.prompt_logprobs  # scored once


# -- cancelling ----------------------------------------------------------------------------------------------


def test_cancelling_at_any_time_leaves_the_others_alone(llm: LLM, plain: LLM) -> None:
    source = random.Random(3)
    more: dict[str, Any] = {"repetition_penalty": 1.3, "bad_words": ("e",), "stop": ("zq",), "prompt_logprobs": 1}
    jobs = [(tokens(n, 3 + 9 * n), replace(DRAWN, seed=n, **(more if n % 2 else {}))) for n in range(5)]
    want = [plain.generate(prompt, params)[0] for prompt, params in jobs]
    for _ in range(2):
        ids = [llm.engine.add_request(prompt, params) for prompt, params in jobs]
        doomed, outputs = dict.fromkeys(source.sample(ids, 3)), {}
        while not llm.engine.idle:
            for piece in llm.engine.step():
                if piece.output is not None:
                    assert piece.request_id not in outputs
                    outputs[piece.request_id] = piece.output
            for request in [r for r in doomed if source.random() < 0.25]:
                del doomed[request]
                output = llm.engine.cancel(request)
                if output is not None:
                    assert output.finish_reason == "cancelled" and request not in outputs
                    outputs[request] = output
        for place, request in enumerate(ids):
            count = len(outputs[request].token_ids)
            assert outputs[request].token_ids == want[place].token_ids[:count]
            if outputs[request].finish_reason != "cancelled":
                assert result(outputs[request]) == result(want[place])
        assert llm.engine.cancel(ids[0]) is None

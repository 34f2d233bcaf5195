"""`AsyncLLM`: several readers at once, leaving early, errors that reach those who wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from support.engines import ROOMY, Trace, jobs, tokens

from tandem.engine.async_llm import AsyncLLM
from tandem.engine.outputs import RequestOutput
from tandem.errors import RequestError
from tandem.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=1.0, seed=1, max_tokens=100, ignore_eos=True)


@pytest.fixture(scope="module")
def served(tiny: Path) -> Iterator[AsyncLLM]:
    llm = AsyncLLM(tiny, backend="cpu", options=ROOMY)
    yield llm
    llm.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the engine's thread, at most a few seconds."""
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


def run(work: Callable[[], Awaitable[object]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work(), 60)  # type: ignore[arg-type]

    asyncio.run(limited())


def idle(llm: AsyncLLM) -> bool:
    parts = llm._llm._assembly
    return llm._llm.engine.idle and not llm._listeners and parts.pools.main.num_available == parts.pools.main.num_blocks


def test_several_at_once_equal_one_at_a_time(served: AsyncLLM, alone: list[Trace]) -> None:
    async def work() -> None:
        outputs = await asyncio.gather(*(served.generate(job.prompt, job.params) for job in jobs()))
        for output, want in zip(outputs, alone, strict=True):
            assert (output.token_ids, output.text) == (want.result.token_ids, want.result.text)
            assert output.logprobs == want.result.logprobs
        await until(lambda: idle(served))

    run(work)


def test_pieces_arrive_while_the_request_runs(served: AsyncLLM) -> None:
    async def work() -> None:
        pieces, running = [], 0
        async for piece in served.stream(tokens(1, 5), LONG):
            pieces.append(piece)
            running += not served._llm.engine.idle
        output = pieces[-1].output
        assert output is not None and sum(len(piece.token_ids) for piece in pieces) == 100
        # The prompt's token, one step, turns of eight; they were not kept to the end.
        assert len(pieces) == 2 + 13 and running > 7
        assert "".join(piece.text for piece in pieces) == output.text

    run(work)


def test_a_second_request_need_not_wait_for_the_first(served: AsyncLLM) -> None:
    async def work() -> None:
        first = served.stream(tokens(1, 5), LONG)
        await anext(first)
        short = await served.generate(tokens(2, 5), GREEDY)
        assert len(short.token_ids) == 6
        left = [piece async for piece in first]
        assert left and left[-1].output is not None  # still running when the short one had ended

    run(work)


def test_the_event_loop_is_not_held_up_by_steps(served: AsyncLLM) -> None:
    """While a slow step runs, the loop goes on, also through submitting and leaving."""
    runner = served._llm._assembly.runner
    launch, slow = runner.launch, threading.Event()

    def slowly(*arguments: object) -> object:
        slow.set()
        time.sleep(0.3)
        return launch(*arguments)  # type: ignore[arg-type]

    async def work() -> None:
        runner.launch = slowly  # type: ignore[method-assign, assignment]
        try:
            task = asyncio.create_task(served.generate(tokens(3, 4), SamplingParams(max_tokens=2, ignore_eos=True)))
            await until(slow.is_set)
            other = served.stream(tokens(4, 4), GREEDY)
            waiting = asyncio.create_task(anext(other))  # type: ignore[arg-type]
            gaps, before = [], time.perf_counter()
            while not task.done():
                await asyncio.sleep(0.005)
                now = time.perf_counter()
                gaps.append(now - before)
                before = now
            await waiting
            await other.aclose()
        finally:
            runner.launch = launch  # type: ignore[method-assign]
        assert max(gaps) < 0.25 and len(gaps) > 20
        await until(lambda: idle(served))

    run(work)


def test_leaving_early_cancels(served: AsyncLLM, alone: list[Trace]) -> None:
    async def work() -> None:
        kept = asyncio.create_task(served.generate(jobs()[0].prompt, jobs()[0].params))
        async for piece in served.stream(tokens(1, 5), LONG):
            if piece.token_ids:
                break
        output: RequestOutput = await kept
        assert output.token_ids == alone[0].result.token_ids
        before = served._llm.engine.stats.tokens
        await until(lambda: idle(served))
        assert served._llm.engine.stats.tokens - before < 50  # it did not run to its 100 tokens

    run(work)


def test_a_cancelled_task_cancels_its_request(served: AsyncLLM) -> None:
    async def work() -> None:
        task = asyncio.create_task(served.generate(tokens(1, 5), LONG))
        await until(lambda: not served._llm.engine.idle)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: idle(served))
        at_once = asyncio.create_task(served.generate(tokens(1, 5), LONG))
        await asyncio.sleep(0)
        at_once.cancel()
        with pytest.raises(asyncio.CancelledError):
            await at_once
        await until(lambda: idle(served))

    run(work)


def test_errors_reach_only_their_caller(served: AsyncLLM, alone: list[Trace]) -> None:
    async def work() -> None:
        results = await asyncio.gather(
            served.generate([], GREEDY),
            served.generate(jobs()[0].prompt, jobs()[0].params),
            served.generate([512], GREEDY),
            served.generate("", GREEDY),
            return_exceptions=True,
        )
        assert [isinstance(r, RequestError) for r in results] == [True, False, True, True]
        assert isinstance(results[1], RequestOutput) and results[1].token_ids == alone[0].result.token_ids
        banned = SamplingParams(max_tokens=4, logit_bias=dict.fromkeys(range(512), float("-inf")))
        assert (await served.generate("x", banned)).finish_reason == "error"

    run(work)


def test_a_failing_step_is_told_to_all_and_survived(served: AsyncLLM) -> None:
    runner = served._llm._assembly.runner
    launch = runner.launch

    def fails(*_: object) -> None:
        raise RuntimeError("no power")

    async def work() -> None:
        runner.launch = fails  # type: ignore[method-assign, assignment]
        try:
            both = [served.generate(tokens(n, 5), GREEDY) for n in range(2)]
            results = await asyncio.gather(*both, return_exceptions=True)
        finally:
            runner.launch = launch  # type: ignore[method-assign]
        assert [str(r) for r in results] == ["no power"] * 2
        await until(lambda: idle(served))
        assert len((await served.generate(tokens(1, 5), GREEDY)).token_ids) == 6

    run(work)


def test_one_event_loop_after_another(served: AsyncLLM) -> None:
    for _ in range(2):
        run(lambda: served.generate(tokens(1, 5), GREEDY))


def test_closing_ends_what_runs(tiny: Path) -> None:
    async def work() -> None:
        before = threading.active_count()
        async with AsyncLLM(tiny, backend="cpu", options=ROOMY) as llm:
            assert threading.active_count() == before + 1
            task = asyncio.create_task(llm.generate(tokens(1, 5), LONG))
            await until(lambda: not llm._llm.engine.idle)
        with pytest.raises(RequestError, match="closed"):
            await task
        with pytest.raises(RequestError, match="closed"):
            await llm.generate("x", GREEDY)
        llm.close()  # again is allowed
        assert not llm._thread.is_alive()

    run(work)

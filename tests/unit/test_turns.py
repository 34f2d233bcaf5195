"""Turns: several decode steps between two looks of the host.  What they give is what single steps give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import ROOMY, Job, drive, jobs, tokens
from support.runner import CompositeBackend
from unit.scheduler_world import Engine as SmallEngine
from unit.scheduler_world import Shape

from tandem.config import load_config
from tandem.contract.backend import Backend
from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput
from tandem.engine.plan import StepPlan
from tandem.engine.turns import MOST, Turns
from tandem.sampling.params import SamplingParams

ALWAYS = 1_000_000  # milliseconds: every turn is as long as its requests allow


# -- how long --------------------------------------------------------------------------------------


def plan_of(steps: int, rows: Sequence[int] = (1, 1)) -> StepPlan:
    count = len(rows)
    none, flags = np.zeros(count, dtype=np.int32), np.ones(count, dtype=np.bool_)
    given = np.array(rows, dtype=np.int32)
    return StepPlan(none, given, none, flags, ~flags, ~flags, none.astype(np.int64), (), steps=steps)


@pytest.mark.parametrize(
    ("longest", "steps", "took", "expected"),
    [
        (0.04, 1, 0.010, 4),  # 40 ms hold four steps of 10
        (0.04, 4, 0.060, 2),  # and two of 15
        (0.04, 1, 0.039, 1),
        (0.04, 1, 0.500, 1),
        (0.04, 8, 0.008, MOST),
        (0.0, 1, 0.001, 1),
    ],
)
def test_a_turn_holds_the_steps_that_its_time_allows(longest: float, steps: int, took: float, expected: int) -> None:
    turns = Turns(longest)
    assert turns.steps == 1
    turns.note(plan_of(steps), took)
    assert turns.steps == expected


def test_nothing_is_known_of_decode_steps_after_a_prompt() -> None:
    turns = Turns(0.04)
    turns.note(plan_of(1), 0.01)
    turns.note(plan_of(1, (1, 7)), 0.01)
    assert turns.steps == 1


# -- the scheduler, by hand ------------------------------------------------------------------------


def test_a_turn_is_on_the_books_until_its_tokens_are_known() -> None:
    engine = SmallEngine(Shape(block=4))
    slot, table = engine.add(5, max_tokens=9), engine.table
    engine.step()
    plan = engine.scheduler.schedule(4)
    # Rows 5 to 8 run, so that three blocks of four are held; tokens 6 to 9 are drawn.
    assert (plan.steps, plan.starts.tolist(), plan.total_rows, plan.most_tokens.tolist()) == (4, [5], 1, [4])
    assert (table.num_computed[slot], table.num_pending[slot], table.num_drawing[slot]) == (9, 4, 1)
    assert engine.tables.main.count[slot] == 3
    assert engine.scheduler.commit(plan, [[7, 8, 9, 10]], [4]).tolist() == [4]
    assert table.output(slot).tolist() == [7, 7, 8, 9, 10]
    assert (table.num_computed[slot], table.num_pending[slot], table.num_drawing[slot]) == (9, 0, 0)
    plan = engine.scheduler.schedule(8)
    assert plan.steps == 4  # tokens that are left of nine
    engine.scheduler.commit(plan, [[1, 2, 3, 4]], [4])
    assert table.output(slot).tolist() == [7, 7, 8, 9, 10, 1, 2, 3, 4] and not len(engine.scheduler.schedule(8))


def test_rows_behind_the_last_token_do_not_count() -> None:
    engine = SmallEngine(Shape(block=4))
    slot, table = engine.add(5, max_tokens=9), engine.table
    engine.step()
    plan = engine.scheduler.schedule(4)
    assert engine.scheduler.commit(plan, [[7, 0, 9, 10]], [2]).tolist() == [2]
    assert (table.num_tokens[slot], table.num_computed[slot], table.num_pending[slot]) == (8, 7, 0)


def test_a_turn_that_did_not_run_is_taken_back() -> None:
    engine = SmallEngine(Shape())
    slot, table = engine.add(5, max_tokens=9), engine.table
    engine.step()
    engine.scheduler.rollback(engine.scheduler.schedule(4))
    assert (table.num_computed[slot], table.num_pending[slot], table.num_drawing[slot]) == (5, 0, 0)
    engine.scheduler.abandon(engine.scheduler.schedule(4))
    assert engine.scheduler.waiting == (slot,) and table.num_computed[slot] == 0


def test_single_steps_where_the_host_must_look() -> None:
    engine = SmallEngine(Shape(block=4, main_blocks=5, chunk=4, depth=2))
    first = engine.add(6, max_tokens=9)
    for _ in range(2):
        engine.step()
    second = engine.add(6, max_tokens=5)
    plan = engine.scheduler.schedule(4)
    assert (plan.slots.tolist(), plan.steps) == ([first, second], 1)  # a prompt is among them
    engine.scheduler.commit(plan, [7, -1])
    engine.step()
    engine.table.ruled[second] = True
    plan = engine.scheduler.schedule(4)
    assert len(plan) == 2 and plan.steps == 1  # a grammar, say
    engine.scheduler.rollback(plan)
    engine.table.ruled[second] = False
    ahead = engine.scheduler.schedule(2)
    assert ahead.steps == 2
    assert engine.scheduler.schedule(4).steps == 1  # a step is in flight


def test_a_single_step_where_blocks_are_few() -> None:
    engine = SmallEngine(Shape(block=4, main_blocks=4, chunk=8))
    for _ in range(2):
        engine.add(7, max_tokens=6)
    engine.step()
    # Row 7 of both is in blocks that they have; a second step would take one more block for each.
    assert engine.scheduler.schedule(4).steps == 1 and engine.pools.main.num_free == 0


def test_a_turn_is_no_longer_than_the_window_table_is_wide() -> None:
    """Steps of two rows, one at a time: the table has entries for two rows that are not committed, and no more."""
    engine = SmallEngine(Shape(block=4, budget=2, chunk=2))
    slot = engine.add(2, max_tokens=30)
    engine.step()
    for _ in range(8):
        plan = engine.scheduler.schedule(8)
        assert plan.steps == engine.tables.window.geometry.most_rows == 2
        engine.scheduler.commit(plan, [[7, 8]], [2])
    assert engine.table.num_tokens[slot] == 2 + 1 + 16


# -- engines ---------------------------------------------------------------------------------------


def open_engine(path: Path, turn_ms: int, backend: Backend | None = None, **options: Any) -> LLM:
    args = {**ROOMY, "model.path": str(path), "scheduler.turn_ms": turn_ms, **options}
    return LLM(config=load_config(env={}, args=args), backend=backend)


def run(llm: LLM, work: Sequence[Job]) -> tuple[list[RequestOutput], int]:
    """What the jobs gave, and how many calls of `Engine.step` that took."""
    engine, found, calls = llm.engine, {}, 0

    def step() -> None:
        nonlocal calls
        calls += 1
        found.update({piece.request_id: piece.output for piece in engine.step() if piece.output is not None})

    ids = drive(engine, work, lambda job: engine.add_request(job.prompt, job.params, **job.extras), step)
    return [found[request] for request in ids], calls


def outcomes(outputs: Sequence[RequestOutput]) -> list[tuple[Any, ...]]:
    return [(one.token_ids, one.text, one.finish_reason, one.stop_reason, one.logprobs) for one in outputs]


def plain_jobs(gap: int = 0) -> list[Job]:
    """Requests without rules, which may end by tokens, strings and lengths."""
    params = [
        SamplingParams(temperature=0.0, max_tokens=21, ignore_eos=True),
        SamplingParams(temperature=1.5, seed=3, max_tokens=60),
        SamplingParams(temperature=1.0, seed=4, max_tokens=60, stop_token_ids=tuple(range(40, 90))),
        SamplingParams(temperature=1.2, seed=5, max_tokens=60, stop=("a", "e")),
        SamplingParams(temperature=0.9, top_k=30, top_p=0.9, min_p=0.01, seed=6, max_tokens=33, ignore_eos=True),
    ]
    return [Job(tokens(9 + i, 5 + 7 * i), each, {}, gap * i) for i, each in enumerate(params)]


@pytest.mark.parametrize("gap", [0, 2], ids=["together", "one after the other"])
@pytest.mark.parametrize(
    "options",
    [{}, {"cache.num_blocks": 11, "cache.block_size": 8}, {"cache.prefix": "on"}],
    ids=["roomy", "few blocks", "cached prefixes"],
)
def test_turns_give_what_single_steps_give(tiny: Path, gap: int, options: dict[str, Any]) -> None:
    work = plain_jobs(gap)
    if "cache.prefix" in options:
        work += [Job(job.prompt, job.params, {}, 40) for job in work]
    single, turns = open_engine(tiny, 0, **options), open_engine(tiny, ALWAYS, **options)
    want, many = run(single, work)
    found, few = run(turns, work)
    assert outcomes(found) == outcomes(want)
    assert {"length", "stop"} <= {output.finish_reason for output in want}
    assert few < 0.7 * many and turns.engine.stats.steps > 1.5 * few
    assert not gap or len({output.finish_reason for output in found}) == 2
    if "cache.num_blocks" in options:
        assert sum(output.preemptions for output in found)


@pytest.mark.parametrize(("rows", "window"), [(3, 1), (2, 4), (1, 4)])
def test_steps_of_few_rows(tiny: Path, rows: int, window: int) -> None:
    """Turns of more rows than a step has: the window table must be wide enough for them."""
    options = {"scheduler.max_tokens_per_step": rows, "scheduler.max_chunk": 1, "scheduler.max_slots": 1}
    options |= {"cache.window_block": window}
    job = Job(tokens(3, 3), SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))
    want, _ = run(open_engine(tiny, 0, **options), [job])
    found, _ = run(open_engine(tiny, ALWAYS, **options), [job])
    assert outcomes(found) == outcomes(want)


def test_requests_with_rules_end_turns_and_get_what_they_asked_for(tiny: Path) -> None:
    want, many = run(open_engine(tiny, 0), jobs())
    found, few = run(open_engine(tiny, ALWAYS), jobs())
    assert outcomes(found) == outcomes(want) and found[0].logprobs is not None
    assert few < many  # when those with rules have ended


def test_tokens_come_in_bursts_and_a_cancelled_request_has_those_that_came(tiny: Path) -> None:
    job = Job(tokens(3, 6), SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
    (whole,), _ = run(open_engine(tiny, 0), [job])
    engine = open_engine(tiny, ALWAYS).engine
    request = engine.add_request(job.prompt, job.params)
    sizes = [len(piece.token_ids) for _ in range(4) for piece in engine.step()]
    # The prompt's, a decode step whose time is not known before, then whole turns.
    assert sizes == [1, 1, MOST, MOST]
    output = engine.cancel(request)
    assert output is not None and output.token_ids == whole.token_ids[: 2 + 2 * MOST]
    assert engine.idle and engine.stats.steps == 2 + 2 * MOST


@pytest.mark.parametrize("fail_at", [1, 5])
def test_a_step_that_fails_within_a_turn_costs_no_token(tiny: Path, fail_at: int) -> None:
    work = [job for job in plain_jobs() if not job.params.stop]
    want, _ = run(open_engine(tiny, 0), work)
    llm = open_engine(tiny, ALWAYS)
    plain, failed = llm.engine._parts.runner.plain, 0
    run_on, calls = plain.run_on, 0

    def failing(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == fail_at:
            raise OSError("no power")
        return run_on(*args)

    plain.run_on = failing  # type: ignore[method-assign]
    engine, found = llm.engine, {}
    ids = [engine.add_request(job.prompt, job.params) for job in work]
    while not engine.idle:
        try:
            found.update({piece.request_id: piece.output for piece in engine.step() if piece.output is not None})
        except OSError:
            failed += 1
    assert failed == 1
    assert outcomes([found[request] for request in ids]) == outcomes(want)
    assert sum(output.preemptions for output in found.values())


def test_no_turns_where_every_op_is_a_call_of_the_host(tiny: Path) -> None:
    llm = open_engine(tiny, ALWAYS, CompositeBackend(use_native=False))
    _, calls = run(llm, [Job(tokens(3, 6), SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True))])
    assert calls == llm.engine.stats.steps == 6


def test_no_turns_with_drafts(tiny: Path) -> None:
    llm = open_engine(tiny, ALWAYS, **{"speculation.draft_tokens": 2})
    _, calls = run(llm, [Job(tokens(3, 6), SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))])
    assert calls == llm.engine.stats.steps

"""Two steps in flight: tokens and lengths go from step to step on the device, results come later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.engines import Job, Overlap, Trace, World, arriving, deliver, jobs, same, same_all, tokens

from tandem.cache.pool import AccountingError
from tandem.engine import step
from tandem.engine.plan import StepPlan
from tandem.engine.requests import RequestTable
from tandem.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.mark.parametrize(("order", "gap"), [((0, 1, 2, 3, 4), 0), ((3, 1, 4, 0, 2), 3)])
def test_same_bits_as_one_step_at_a_time(
    world: World, alone: list[Trace], order: tuple[int, ...], gap: int
) -> None:
    overlap = Overlap(world)
    same_all(world.run(list(arriving(order, gap)), overlap.step), [alone[index] for index in order])
    assert overlap.most == 2
    # All but the first token of each request come from the device.
    assert overlap.from_device > 40


def test_the_host_copy_of_a_token_is_not_read(
    tiny: Path, alone: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decode row takes id and position from the device: with wrong host values the bits are the same."""
    own = World(tiny)
    overlap = Overlap(own)
    real = step.host_rows

    def spoilt(table: RequestTable, plan: StepPlan) -> dict[str, np.ndarray]:
        rows = real(table, plan)
        rows["ids"][rows["from_device"] == 1] = 11
        return rows

    monkeypatch.setattr(step, "host_rows", spoilt)
    same(own.run([jobs()[1]], overlap.step)[0], alone[1])
    assert overlap.from_device == jobs()[1].params.max_tokens - 1


def test_preemption_with_steps_in_flight(tiny: Path, alone: list[Trace]) -> None:
    own = World(tiny, {"cache.num_blocks": 6})
    overlap = Overlap(own)
    order = (3, 4, 1, 0, 2)
    same_all(own.run(list(arriving(order, 0)), overlap.step), [alone[index] for index in order])
    assert own.engine.stats.preemptions > 0 and own.least_free == 0 and overlap.most == 2


def test_a_stop_token_drawn_while_the_next_step_runs(world: World, alone: list[Trace]) -> None:
    job, want = jobs()[1], alone[1].result.token_ids
    stop = want[9]
    cut = want.index(stop) + 1
    stopped = Job(job.prompt, replace(job.params, stop_token_ids=(stop,)))
    overlap = Overlap(world)
    before = len(world.recorder.plans)
    traces = world.run([stopped, jobs()[0]], overlap.step)
    assert traces[0].result.token_ids == want[:cut]
    assert (traces[0].result.finish_reason, traces[0].result.stop_reason) == ("stop", stop)
    same(traces[1], alone[0])
    assert len(world.recorder.plans) > before + cut
    # The step after the stop was under way; its token reached nobody.
    assert max(traces[0].hidden) == len(job.prompt) + cut - 1
    assert [t for piece in traces[0].pieces for t in piece.token_ids] == list(want[:cut])


def test_slots_reused_behind_a_step_in_flight(tiny: Path, alone: list[Trace]) -> None:
    """With one slot, each request takes over memory that a step of the request before still writes."""
    own = World(tiny, {"scheduler.max_slots": 1})
    want = alone[1].result.token_ids
    first = Job(jobs()[1].prompt, replace(jobs()[1].params, stop_token_ids=(want[5],)))
    traces = own.run([first, jobs()[0], first, jobs()[3]], Overlap(own).step)
    same(traces[1], alone[0])
    same(traces[3], alone[3])
    assert traces[0].result.token_ids == traces[2].result.token_ids == want[: want.index(want[5]) + 1]


def test_cancelled_between_launch_and_delivery(world: World, alone: list[Trace]) -> None:
    known = jobs()
    overlap = Overlap(world)
    doomed, kept = world.add(known[1]), world.add(known[0])
    for _ in range(6):
        overlap.step()
    overlap.launch()
    output = world.engine.cancel(doomed)
    assert output is not None and output.finish_reason == "cancelled"
    assert output.token_ids == alone[1].result.token_ids[: len(output.token_ids)] and len(output.token_ids) >= 4
    assert world.engine.cancel(doomed) is None
    late = world.add(known[4])  # gets the slot and blocks that were given back
    pieces = len(world.recorder.trace(doomed).pieces)
    while not world.engine.idle:
        overlap.step()
    world.check_clean()
    assert len(world.recorder.trace(doomed).pieces) == pieces
    same(world.recorder.trace(kept), alone[0])
    same(world.recorder.trace(late), alone[4])


def test_a_step_too_early_or_out_of_order(world: World) -> None:
    scheduler, engine = world.parts.scheduler, world.engine
    world.add(Job(tokens(8, 4), GREEDY))
    engine._fill_slots()
    handles = [world.parts.runner.launch(scheduler.schedule(), engine._live) for _ in range(2)]
    with pytest.raises(AccountingError, match="too early"):
        scheduler.schedule()
    with pytest.raises(AccountingError, match="out of order"):
        scheduler.commit(handles[1].plan, [7])
    for handle in handles:
        world.take(deliver(engine, handle))
    world.finish()


def test_one_token_requests_leave_nothing_in_flight(world: World, alone: list[Trace]) -> None:
    job = jobs()[0]
    short = Job(job.prompt, replace(job.params, max_tokens=1))
    overlap = Overlap(world)
    (trace,) = world.run([short], overlap.step)
    assert trace.result.token_ids == alone[0].result.token_ids[:1] and trace.result.finish_reason == "length"
    assert overlap.from_device == 0

"""Rejected draft rows: what they wrote is written over, and nothing of it is ever seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.engines import Trace, World, jobs, same

from tandem.cache.pool import AccountingError

MARGIN = 2  # one token and its anchor, as the window geometry allows without drafts of more


def draft_and_reject(world: World, slot: int, rows: int, wrong: int) -> None:
    """Run rows with wrong tokens at the next positions, then take them back.

    With one row the token at hand is replaced; with two a draft follows it.
    """
    table, scheduler = world.parts.table, world.parts.scheduler
    length = int(table.num_tokens[slot])
    kept = table.tokens[slot, length - 1 : length + 1].copy()
    table.tokens[slot, length - 1 : length + rows - 1] = [wrong, wrong + 1][:rows]
    table.num_tokens[slot] = length + rows - 1
    plan = scheduler.schedule()
    assert plan.starts.tolist() == [length - 1] and plan.num_rows.tolist() == [rows]
    handle = world.recorder._runner.launch(plan, world.engine._live)  # not recorded: these rows never were
    scheduler.commit(plan, handle.tokens())
    table.num_tokens[slot] = length
    table.tokens[slot, length - 1 : length + 1] = kept
    scheduler.rewind(slot, rows)
    assert int(table.num_computed[slot]) == length - 1


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("index", [0, 1, 4])
def test_rows_written_over_after_a_rejected_draft(
    tiny: Path, alone: list[Trace], index: int, rows: int
) -> None:
    """A rejection before every token, at both parities of the compressor's pairs, across window pages and blocks."""
    own = World(tiny)
    assert own.parts.tables.window.geometry.rollback == MARGIN
    request = own.add(jobs()[index])
    own.step()
    slot, drafts = own.engine._slot_of[request], 0
    while not own.engine.idle:
        if int(own.parts.table.num_tokens[slot]) + rows < int(own.parts.table.limit[slot]):
            draft_and_reject(own, slot, rows, 100 + 2 * drafts)
            drafts += 1
        own.step()
    own.check_clean()
    assert drafts >= jobs()[index].params.max_tokens - 3
    same(own.recorder.trace(request), alone[index])


def test_rows_run_again_with_the_same_tokens(tiny: Path, alone: list[Trace]) -> None:
    """Rewinding alone: the rows run again (the recorder compares them) and draw the same token again."""
    own = World(tiny)
    request = own.add(jobs()[0])
    for _ in range(4):
        own.step()
    slot = own.engine._slot_of[request]
    for _ in range(3):
        own.parts.scheduler.rewind(slot, MARGIN)
        plan = own.parts.scheduler.schedule()
        assert plan.num_rows.tolist() == [MARGIN + 1]
        handle = own.parts.runner.launch(plan, own.engine._live)
        own.take(own.engine._deliver(handle))
    own.finish()
    same(own.recorder.trace(request), alone[0])


def test_no_further_than_the_window_keeps(world: World) -> None:
    request = world.add(jobs()[0])
    world.step()
    slot = world.engine._slot_of[request]
    for rows in (MARGIN + 1, -1):
        with pytest.raises(AccountingError, match="rewound too far"):
            world.parts.scheduler.rewind(slot, rows)
    world.engine.cancel(request)
    world.check_clean()


def test_a_step_taken_back_before_it_ran(world: World, alone: list[Trace], monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that fails is scheduled again, and the requests end as if nothing had happened."""
    known = jobs()
    ids = [world.add(job) for job in known[:2]]
    forward, calls = world.recorder._forward, []

    def failing(step: object) -> object:
        calls.append(1)
        hidden = forward(step)
        if len(calls) in (1, 4):
            raise RuntimeError("the device went away")  # after the caches were written
        return hidden

    monkeypatch.setattr(world.recorder, "_forward", failing)
    failures = 0
    while not world.engine.idle:
        try:
            world.step()
        except RuntimeError:
            failures += 1
    assert failures == 2
    world.check_clean()
    for request, want in zip(ids, alone, strict=False):
        same(world.recorder.trace(request), want)


def test_every_draft_row_leaves_a_trace_that_matters(tiny: Path, alone: list[Trace]) -> None:
    """The check above can fail: a wrong token that stays changes what comes after it."""
    own = World(tiny)
    request = own.add(jobs()[0])
    own.step()
    table, slot = own.parts.table, own.engine._slot_of[request]
    table.tokens[slot, int(table.num_tokens[slot]) - 1] = 100
    own.finish()
    position = len(jobs()[0].prompt) + 1
    assert not np.array_equal(own.recorder.trace(request).logits[position], alone[0].logits[position])

"""The scheduler, step by step: every expected plan is worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from unit.scheduler_world import Engine, Shape, entries

from tandem.cache.pool import AccountingError
from tandem.engine.plan import SchedulerLimits, StepDraft
from tandem.engine.request_state import Sampling
from tandem.engine.requests import Status
from tandem.engine.scheduler import Scheduler
from tandem.engine.spans import leading_span, longest_span, whole_spans
from tandem.errors import CapacityError, ConfigError, RequestError


def test_prompt_is_cut_into_chunks_and_then_decodes():
    engine = Engine(Shape(chunk=8))
    slot = engine.add(19, max_tokens=3)
    assert engine.step() == {slot: (0, 8, False)}
    assert engine.table.num_tokens[slot] == 19
    assert engine.step() == {slot: (8, 8, False)}
    assert engine.step() == {slot: (16, 3, True)}
    assert engine.table.output(slot).tolist() == [7]
    assert engine.step(8) == {slot: (19, 1, True)}
    assert engine.step(9) == {slot: (20, 1, True)}
    assert engine.table.output(slot).tolist() == [7, 8, 9]
    assert engine.step() == {}  # three tokens are all it may have
    engine.scheduler.finish(slot)
    assert engine.scheduler.idle and engine.pools.main.num_free == 40 and engine.pools.window.num_free == 80


def test_decode_rows_come_first_and_prompts_share_the_rest_in_order():
    engine = Engine(Shape(budget=12, chunk=8))
    first = engine.add(2, max_tokens=9)
    assert engine.step() == {first: (0, 2, True)}
    second, third = engine.add(10, max_tokens=2), engine.add(10, max_tokens=2)
    # 12 rows: one decode row, 8 (the longest chunk) of the second, 3 of the third.
    plan = engine.scheduler.schedule()
    assert plan.slots.tolist() == [first, second, third]
    assert plan.num_rows.tolist() == [1, 8, 3] and plan.row_ends.tolist() == [1, 9, 12]
    assert plan.total_rows == 12 and plan.ends.tolist() == [3, 8, 3]
    assert plan.sample.tolist() == [True, False, False]
    engine.scheduler.commit(plan, [5, -1, -1])
    assert entries(engine.scheduler.schedule()) == {
        first: (3, 1, True),
        second: (8, 2, True),
        third: (3, 7, True),
    }


def test_blocks_are_taken_only_for_rows_that_run():
    engine = Engine(Shape(block=4, chunk=5, main_blocks=8))
    slot = engine.add(13, max_tokens=8)  # up to 20 computed tokens, 5 blocks
    for held in (2, 3, 4, 4, 4, 4, 5):  # lengths 5, 10, 13, 14, 15, 16, 17
        engine.step()
        assert engine.tables.main.count[slot] == held and engine.pools.main.num_free == 8 - held


def test_no_more_than_max_running_are_admitted_and_order_is_kept():
    engine = Engine(Shape(running=2))
    slots = [engine.add(2, max_tokens=2) for _ in range(4)]
    assert list(engine.step()) == slots[:2]
    assert engine.scheduler.waiting == tuple(slots[2:]) and engine.scheduler.running == tuple(slots[:2])
    engine.scheduler.finish(slots[0])
    assert list(engine.step()) == [slots[1], slots[2]]


def test_youngest_is_put_back_when_blocks_run_out_and_is_recomputed():
    engine = Engine(Shape(block=4, main_blocks=4, chunk=8))
    old, young = engine.add(7, max_tokens=9), engine.add(3, max_tokens=9)
    # 2 blocks for the old one, 1 for the young one, 1 free.
    assert engine.step() == {old: (0, 7, True), young: (0, 3, True)}
    assert engine.step() == {old: (7, 1, True), young: (3, 1, True)}
    # Both need a block for their next row: the old one gets it, the young one keeps its own and waits.
    for start in (8, 9, 10, 11):
        assert engine.step() == {old: (start, 1, True)}
    plan = engine.scheduler.schedule()
    assert plan.preempted == (young,) and entries(plan) == {old: (12, 1, True)}
    assert engine.table.num_computed[young] == 0 and engine.table.preemptions[young] == 1
    assert engine.table.status[young] == Status.WAITING and engine.tables.main.count[young] == 0
    assert engine.scheduler.waiting == (young,) and engine.table.preemptions[old] == 0
    engine.scheduler.commit(plan, [7])
    engine.scheduler.finish(old)
    # Alone: its prompt and both tokens it had drawn are recomputed as one chunk that ends in a draw.
    assert engine.step() == {young: (0, 5, True)}
    assert engine.table.output(young).tolist() == [7, 7, 7]


def test_a_running_prompt_shrinks_to_the_blocks_left_and_waits_for_more():
    engine = Engine(Shape(block=4, main_blocks=5, budget=16, chunk=12))
    old, prompt = engine.add(3, max_tokens=2), engine.add(20, max_tokens=1)
    assert engine.step() == {old: (0, 3, True), prompt: (0, 12, False)}  # 1 and 3 blocks
    assert engine.step() == {old: (3, 1, True), prompt: (12, 4, False)}  # 1 block left: 4 rows instead of 8
    assert engine.step() == {}
    engine.scheduler.finish(old)
    assert engine.step() == {prompt: (16, 4, True)}
    assert engine.table.preemptions[prompt] == 0


def test_old_prompt_puts_back_a_younger_decode_row_of_the_same_step():
    engine = Engine(Shape(block=4, main_blocks=5, budget=6, chunk=4, running=2))
    prompt, young = engine.add(17, max_tokens=1), engine.add(2, max_tokens=10)
    assert engine.step() == {prompt: (0, 4, False), young: (0, 2, True)}
    assert engine.step() == {young: (2, 1, True), prompt: (4, 4, False)}
    assert engine.step() == {young: (3, 1, True), prompt: (8, 4, False)}
    # Row 4 of the young one takes the last block, and gives it up within the step.
    plan = engine.scheduler.schedule()
    assert plan.preempted == (young,) and entries(plan) == {prompt: (12, 4, False)}
    engine.scheduler.commit(plan, [-1])
    assert engine.step() == {prompt: (16, 1, True)}
    engine.scheduler.finish(prompt)
    assert engine.step() == {young: (0, 4, False)} and engine.step() == {young: (4, 1, True)}


def test_admission_leaves_a_block_for_each_request_that_will_grow():
    engine = Engine(Shape(block=4, main_blocks=3))
    old, new = engine.add(4, max_tokens=5), engine.add(8, max_tokens=1)
    # The old one will need a second block, so the new one gets 1 of the 2 free ones.
    assert engine.step() == {old: (0, 4, True), new: (0, 4, False)}
    assert engine.step() == {old: (4, 1, True)}
    assert engine.table.preemptions[new] == 0


def test_a_request_put_back_does_not_start_again_in_the_same_step():
    engine = Engine(Shape(block=4, main_blocks=4))
    old, young = engine.add(4, max_tokens=9), engine.add(9, max_tokens=1)
    assert engine.step() == {old: (0, 4, True), young: (0, 8, False)}  # 1 and 2 blocks
    for start in (4, 5, 6, 7):
        assert engine.step() == {old: (start, 1, True)}
    plan = engine.scheduler.schedule()
    assert plan.preempted == (young,) and entries(plan) == {old: (8, 1, True)}
    assert engine.pools.main.num_free == 1
    engine.scheduler.commit(plan, [7])
    assert engine.step() == {old: (9, 1, True), young: (0, 4, False)}


def test_nobody_is_admitted_while_a_running_request_waits_for_blocks():
    engine = Engine(Shape(block=4, main_blocks=4, budget=9))
    first, second = engine.add(2, max_tokens=3), engine.add(2, max_tokens=3)
    image = engine.add(13, max_tokens=1, roles=[0] * 4 + [1] * 8 + [0])
    assert engine.step() == {first: (0, 2, True), second: (0, 2, True), image: (0, 4, False)}
    late = engine.add(2, max_tokens=1)
    # One block is free; the span needs two.
    assert engine.step() == {first: (2, 1, True), second: (2, 1, True)}
    assert engine.scheduler.waiting == (late,) and engine.pools.main.num_free == 1
    engine.scheduler.finish(first)
    assert engine.step() == {second: (3, 1, True), image: (4, 8, False)}


def test_one_step_ahead_rows_wait_for_tokens_on_the_device():
    engine = Engine(Shape(depth=2))
    slot = engine.add(3, max_tokens=3)
    first = engine.scheduler.schedule()
    second = engine.scheduler.schedule()
    assert entries(first) == {slot: (0, 3, True)} and not first.from_device.any()
    assert entries(second) == {slot: (3, 1, True)} and second.from_device.all()
    with pytest.raises(AccountingError, match="too early"):
        engine.scheduler.schedule()
    with pytest.raises(AccountingError, match="out of order"):
        engine.scheduler.commit(second, [1])
    assert engine.scheduler.commit(first, [11]).tolist() == [1]
    third = engine.scheduler.schedule()
    assert entries(third) == {slot: (4, 1, True)} and third.from_device.all()
    engine.scheduler.commit(second, [12])
    assert len(engine.scheduler.schedule()) == 0  # the third token is its last: nothing more to compute
    engine.scheduler.commit(third, [13])
    assert engine.table.output(slot).tolist() == [11, 12, 13]


@pytest.mark.parametrize("how", ["finish", "cancel"])
def test_results_in_flight_of_an_ended_request_do_not_touch_the_next_one_in_its_slot(how):
    engine = Engine(Shape(depth=2, slots=1, running=1))
    slot = engine.add(3, max_tokens=5)
    first, second = engine.scheduler.schedule(), engine.scheduler.schedule()
    engine.scheduler.commit(first, [11])
    getattr(engine.scheduler, how)(slot)
    assert engine.add(2, max_tokens=5) == slot
    third = engine.scheduler.schedule()
    assert engine.scheduler.commit(second, [99]).tolist() == [0]
    assert engine.scheduler.commit(third, [5]).tolist() == [1]
    assert engine.table.tokens[slot, :3].tolist() == [1, 2, 5]


def test_a_step_that_was_not_run_can_be_taken_back():
    engine = Engine(Shape(depth=2))
    slot = engine.add(10, max_tokens=5)
    first = engine.scheduler.schedule()
    second = engine.scheduler.schedule()
    with pytest.raises(AccountingError):
        engine.scheduler.rollback(first)
    engine.scheduler.rollback(second)
    assert engine.table.num_computed[slot] == 8 and engine.table.num_pending[slot] == 0
    assert entries(engine.scheduler.schedule()) == entries(second) == {slot: (8, 2, True)}


def test_a_token_that_could_not_be_drawn_is_not_appended():
    engine = Engine(Shape())
    slot = engine.add(2, max_tokens=5)
    plan = engine.scheduler.schedule()
    assert engine.scheduler.commit(plan, [-1]).tolist() == [0]
    assert engine.table.output(slot).size == 0 and engine.step() == {}
    engine.scheduler.finish(slot)
    assert engine.scheduler.idle


def test_requests_that_can_never_fit_are_refused_alone():
    engine = Engine(Shape(block=4, main_blocks=5, max_len=40))
    other = engine.add(4, max_tokens=2)
    # 20 prompt tokens fit 5 blocks; the last drawn token is never computed: max_tokens 1 fits, 2 does not.
    fits = engine.add(20, max_tokens=1)
    slot = engine.table.create(np.arange(20), Sampling(max_tokens=2))
    with pytest.raises(CapacityError, match="it needs 6 blocks, the cache has 5"):
        engine.scheduler.add(slot)
    engine.table.free(slot)
    assert engine.scheduler.waiting == (other, fits)


def test_misuse_is_refused():
    engine = Engine(Shape())
    slot = engine.add(2, max_tokens=2)
    with pytest.raises(AccountingError, match="given to the scheduler twice"):
        engine.scheduler.add(slot)
    with pytest.raises(AccountingError, match="not running"):
        engine.scheduler.finish(slot)
    with pytest.raises(AccountingError, match="not scheduled"):
        engine.scheduler.cancel(3)
    plan = engine.scheduler.schedule()
    with pytest.raises(AccountingError, match="wrong number of tokens"):
        engine.scheduler.commit(plan, [1, 2])
    engine.scheduler.commit(plan, [1])
    with pytest.raises(AccountingError, match="out of order"):
        engine.scheduler.commit(plan, [1])


def test_shapes_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match="limit is too small"):
        SchedulerLimits(0, 1, 1)
    with pytest.raises(ConfigError, match="window pool cannot serve"):
        Engine(Shape(window_blocks=3))  # 4 + 2 + 1 positions touch up to 4 blocks of 2
    engine = Engine(Shape())
    with pytest.raises(ConfigError, match="too narrow"):
        Scheduler(engine.table, engine.pools, engine.tables, SchedulerLimits(17, 8, 4))
    with pytest.raises(ConfigError, match="too narrow"):
        Scheduler(engine.table, engine.pools, engine.tables, SchedulerLimits(16, 8, 4, 2))


# -- image spans ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "rows", "most", "expected"),
    [
        ("000000", 3, 3, 3),  # text may be cut anywhere
        ("001110", 2, 3, 2),  # just before the span
        ("001110", 3, 4, 2),  # inside it: back to its start
        ("001110", 5, 5, 5),  # just behind it
        ("111000", 2, 3, 3),  # the span comes first: forward to its end
        ("111000", 2, 2, 0),  # ... which does not fit
        ("111111", 4, 6, 6),
        ("110011", 5, 5, 4),
        ("110110", 4, 9, 3),
    ],
)
def test_whole_spans(roles, rows, most, expected):
    array = np.array([int(c) for c in roles], dtype=np.uint8)
    assert whole_spans(array, rows, most) == expected


def test_span_lengths():
    roles = np.array([1, 2, 0, 0, 1, 2, 3, 0, 1], dtype=np.uint8)
    assert leading_span(roles) == 2 and leading_span(roles[2:]) == 0 and longest_span(roles) == 3
    assert leading_span(roles[8:]) == 1 and longest_span(roles[2:4]) == 0 and longest_span(roles[:0]) == 0


def test_a_span_moves_whole_and_may_displace_decode_rows():
    engine = Engine(Shape(budget=8, chunk=4, running=3))
    decodes = [engine.add(1, max_tokens=9), engine.add(1, max_tokens=9)]
    engine.step()
    # 2 text, 7 image, 1 text: the span exceeds the chunk limit and does not fit beside two decode rows.
    image = engine.add(10, max_tokens=1, roles=[0, 0, 1, 2, 3, 4, 5, 6, 7, 0])
    assert engine.step() == {decodes[0]: (1, 1, True), decodes[1]: (1, 1, True), image: (0, 2, False)}
    assert engine.step() == {decodes[0]: (2, 1, True), image: (2, 7, False)}
    assert engine.step() == {decodes[0]: (3, 1, True), decodes[1]: (2, 1, True), image: (9, 1, True)}


def test_a_span_longer_than_a_step_fails_its_request_only():
    engine = Engine(Shape(budget=8))
    other = engine.add(2, max_tokens=2)
    slot = engine.table.create(np.arange(12), Sampling(max_tokens=2), roles=[0] + [1] * 9 + [0] * 2)
    with pytest.raises(RequestError, match="image span is longer than a step") as caught:
        engine.scheduler.add(slot)
    assert not isinstance(caught.value, CapacityError)
    engine.table.free(slot)
    assert list(engine.step()) == [other]


# -- adoption ------------------------------------------------------------------------------------


def test_adopted_request_goes_on_where_it_stopped():
    engine = Engine(Shape(main_blocks=5, block=4))
    slot = engine.table.create(np.arange(1, 12), Sampling(max_tokens=3))
    with pytest.raises(AccountingError, match="wrong length"):
        engine.scheduler.adopt(slot, 11)  # the last token must be computed to draw the next
    assert engine.scheduler.adopt(slot, 10)
    # Main blocks for 10 tokens; window pages of positions 10 - 4 - 2 = 4 .. 9.
    assert engine.tables.main.count[slot] == 3
    assert (engine.tables.window.first[slot], engine.tables.window.end[slot]) == (2, 5)
    assert engine.step() == {slot: (10, 1, True)}


def test_adoption_never_overtakes_and_never_takes_a_part():
    engine = Engine(Shape(main_blocks=5, block=4, running=2))
    prompt = np.arange(1, 13)
    first, late = (engine.table.create(prompt, Sampling(max_tokens=1)) for _ in range(2))
    assert engine.scheduler.adopt(first, 11)  # 3 of 5 blocks
    free = engine.pools.window.num_free
    assert not engine.scheduler.adopt(late, 11)
    assert (engine.pools.main.num_free, engine.pools.window.num_free) == (2, free)
    assert engine.table.status[late] == Status.NEW and engine.scheduler.running == (first,)
    waiting = engine.add(20, max_tokens=1)
    short = engine.table.create([1, 2], Sampling(max_tokens=1))
    assert not engine.scheduler.adopt(short, 1)
    assert engine.scheduler.waiting == (waiting,)


# -- drafts of a plan ----------------------------------------------------------------------------


def test_draft_gives_rows_back_to_the_budget():
    draft = StepDraft(budget=12, each=2)
    draft.set_decodes(np.array([4, 5, 6], dtype=np.int32))
    assert draft.budget == 6 and draft.can_offer(9)  # the first chunk may push decode rows aside ...
    draft.displace(6)
    assert (draft.decodes.tolist(), draft.budget) == ([4, 5, 6], 6)
    draft.displace(7)
    assert (draft.decodes.tolist(), draft.budget) == ([4, 5], 8)
    draft.add_chunk(8, 5)
    draft.add_chunk(9, 3)
    assert draft.budget == 0 and not draft.can_offer(1)  # ... later ones may not
    draft.drop(9)
    assert (draft.decodes.tolist(), draft.slots, draft.rows, draft.budget) == ([4, 5], [8], [5], 3)
    draft.drop(4)
    draft.drop(9)
    assert (draft.decodes.tolist(), draft.slots, draft.rows, draft.budget) == ([5], [8], [5], 5)

"""Settling a step, by hand: where its tokens are cut, and what the books say while steps are in flight."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.engine.books import StepBooks
from tandem.engine.ends import FAILED, GOES_ON, LENGTH, STOP, TokenEnds
from tandem.engine.extras import RequestExtras
from tandem.engine.plan import SchedulerLimits, StepDraft, StepPlan
from tandem.engine.request_state import Sampling
from tandem.engine.requests import RequestTable, Status

EOS = 1
CUTS = {
    "goes on": (Sampling(9), (), [7, 8, 9, 4], 4, (4, GOES_ON)),
    "end token": (Sampling(9), (), [7, 8, EOS, 4], 4, (3, STOP)),
    "end token ignored": (Sampling(9, ignore_eos=True), (), [7, 8, EOS, 4], 4, (4, GOES_ON)),
    "end token among what does not count": (Sampling(9), (), [7, EOS, 4, 4], 1, (1, GOES_ON)),
    "nothing counts": (Sampling(9), (), [EOS, EOS, -1, 4], 0, (0, GOES_ON)),
    "stop token": (Sampling(9), (8, 4), [7, 8, 9, 4], 4, (2, STOP)),
    "length": (Sampling(3), (), [7, 8, 9, 4], 4, (3, LENGTH)),
    "length as the last token": (Sampling(4), (), [7, 8, 9, 4], 4, (4, LENGTH)),
    "end token as the last of the length": (Sampling(3), (), [7, 8, EOS, 4], 4, (3, STOP)),
    "end token behind the length": (Sampling(2), (), [7, 8, EOS, 4], 4, (2, LENGTH)),
    "too early for a stop": (Sampling(9, min_tokens=3), (8,), [EOS, 8, 8, 4], 4, (3, STOP)),
    "never late enough": (Sampling(9, min_tokens=5), (8,), [EOS, 8, 8, 8], 4, (4, GOES_ON)),
    "nothing drawn": (Sampling(9), (), [-1, 8, 9, 4], 1, (0, FAILED)),
    "nothing drawn behind accepted drafts": (Sampling(9), (), [7, 8, -1, 4], 3, (2, FAILED)),
    "nothing drawn behind an end": (Sampling(9), (), [7, EOS, -1, 4], 3, (2, STOP)),
    "nothing drawn behind the length": (Sampling(2), (), [7, 8, -1, 4], 3, (2, LENGTH)),
    "filler behind what counts": (Sampling(9), (), [7, -1, -1, -1], 1, (1, GOES_ON)),
}


def test_cuts() -> None:
    """Every case alone, and all of them in one step."""
    table = RequestTable(len(CUTS), 40)
    slots = np.array(
        [table.create([5, 6], s, extras=RequestExtras(stop_token_ids=stops)) for s, stops, *_ in CUTS.values()]
    ).astype(np.int32)
    tokens = np.array([case[2] for case in CUTS.values()], dtype=np.int32)
    counts = np.array([case[3] for case in CUTS.values()], dtype=np.int32)
    ends = TokenEnds(table, EOS)
    kept, reasons = ends.cut(slots, tokens, counts)
    got = dict(zip(CUTS, zip(kept.tolist(), reasons.tolist(), strict=True), strict=True))
    assert got == {name: case[4] for name, case in CUTS.items()}
    for place, name in enumerate(CUTS):
        one = slice(place, place + 1)
        alone = ends.cut(slots[one], tokens[one], counts[one])
        assert (alone[0].item(), alone[1].item()) == CUTS[name][4]


def test_cuts_count_what_was_written_before() -> None:
    """Five tokens are out: the second of the next is the seventh, the last; a stop counts from the sixth on."""
    table = RequestTable(1, 40)
    slot = np.array([table.create([5, 6], Sampling(7, min_tokens=6))], dtype=np.int32)
    table.append(slot, np.array([[9, 9, 9, 9, 9]]), np.array([5]))
    ends = TokenEnds(table, EOS)
    for row, want in (([9, 9, 9], (2, LENGTH)), ([EOS, 9, 9], (1, STOP))):
        kept, reasons = ends.cut(slot, np.array([row], dtype=np.int32), np.array([3], dtype=np.int32))
        assert (kept.item(), reasons.item()) == want


# -- the books -------------------------------------------------------------------------------------

LIMITS = SchedulerLimits(32, 16, 4, 2, draft_tokens=3)


class Ledger:
    """A table with running requests, and its books."""

    def __init__(self, limits: SchedulerLimits = LIMITS) -> None:
        self.table = RequestTable(4, 60)
        self.books = StepBooks(self.table, limits)

    def running(self, prompt: int, output: int, computed: int, max_tokens: int = 20) -> int:
        slot = self.table.create(range(10, 10 + prompt), Sampling(max_tokens))
        self.table.append(np.array([slot]), np.arange(50, 50 + output)[None], np.array([output]))
        self.table.num_computed[slot], self.table.status[slot] = computed, Status.RUNNING
        return slot

    def seal(self, decodes: list[int], chunks: list[tuple[int, int]] | None = None) -> StepPlan:
        step = StepDraft(32, 4)
        step.set_decodes(np.array(decodes, dtype=np.int32))
        for slot, rows in chunks or ():
            step.add_chunk(slot, rows)
        return self.books.seal(step)

    def numbers(self, slot: int) -> tuple[int, int, int, int]:
        """Tokens, computed, pending and drawing."""
        table = self.table
        arrays = (table.num_tokens, table.num_computed, table.num_pending, table.num_drawing)
        return tuple(int(array[slot]) for array in arrays)  # type: ignore[return-value]


def test_a_decode_entry_has_the_most_rows_until_it_is_settled() -> None:
    ledger = Ledger()
    slot = ledger.running(5, 2, 6)  # 7 tokens; the row of the newest, at position 6, comes next
    plan = ledger.seal([slot])
    assert (plan.starts.tolist(), plan.num_rows.tolist(), plan.speculative, plan.draft_rows) == ([6], [4], 1, 4)
    assert plan.sample.all() and plan.from_device.all() and not plan.known.any()
    assert ledger.numbers(slot) == (7, 10, 4, 1)
    appended, live, lengths = ledger.books.settle(plan, np.array([[60, 61, -1, -1]]), np.array([2]))
    assert (appended.tolist(), live.tolist(), lengths.tolist()) == ([2], [True], [8])
    assert ledger.numbers(slot) == (9, 8, 0, 0)  # rows 6 and 7 stand, tokens 7 and 8 are known
    assert ledger.table.tokens[slot, 5:9].tolist() == [50, 51, 60, 61]


def test_two_steps_in_flight() -> None:
    ledger = Ledger()
    slot = ledger.running(5, 1, 5)
    first, second = ledger.seal([slot]), ledger.seal([slot])
    assert second.starts.tolist() == [9] and ledger.numbers(slot) == (6, 13, 8, 2)
    _, _, lengths = ledger.books.settle(first, np.array([[60]]), np.array([1]))
    assert lengths.tolist() == [6] and ledger.numbers(slot) == (7, 10, 4, 1)
    _, _, lengths = ledger.books.settle(second, np.array([[61, 62, 63, 64]]), np.array([4]))
    assert lengths.tolist() == [10] and ledger.numbers(slot) == (11, 10, 0, 0)


def test_steps_that_cannot_add_anything_are_not_planned() -> None:
    """Of 4 tokens 2 are out; steps in flight that draw give at least one each, so with two of them it is enough."""
    ledger = Ledger()
    slot = ledger.running(5, 2, 6, max_tokens=4)
    slots = np.array([slot], dtype=np.int32)
    for wanted in (True, True, False):
        decodes, chunks = ledger.books.rows_left(slots)
        assert (decodes.tolist(), chunks.tolist()) == ([wanted], [False])
        if wanted:
            assert ledger.books.decode_ends(slots).item() == 8  # the last token, at 8, has no row
            ledger.seal([slot])


def test_tokens_beyond_the_limit_are_not_appended() -> None:
    ledger = Ledger()
    slot = ledger.running(5, 3, 7, max_tokens=4)
    appended, _, _ = ledger.books.settle(ledger.seal([slot]), np.array([[60, 61, 62]]), np.array([3]))
    assert appended.tolist() == [1] and ledger.numbers(slot)[:2] == (9, 8)


def test_a_first_token_of_minus_one_appends_nothing() -> None:
    ledger = Ledger()
    slot, other = ledger.running(5, 1, 5), ledger.running(5, 1, 5)
    plan = ledger.seal([slot, other])
    appended, live, _ = ledger.books.settle(plan, np.array([[-1, -1], [60, 61]]), np.array([1, 2]))
    assert appended.tolist() == [0, 2] and live.all()
    assert ledger.numbers(slot) == (6, 5, 0, 0) and ledger.numbers(other) == (8, 7, 0, 0)


def test_recomputing_stops_short_of_the_newest_token() -> None:
    """9 tokens of which 4 are output: rows 0 to 7 run, and the row at 7 emits the token at 8 once more."""
    ledger = Ledger()
    slot = ledger.running(5, 4, 0)
    slots = np.array([slot], dtype=np.int32)
    goals, recomputes = ledger.books.goals(slots)
    assert (goals.item(), recomputes.item()) == (8, True)
    first = ledger.seal([], [(slot, 6)])
    assert not first.sample.any()
    last = ledger.seal([], [(slot, 2)])
    assert last.sample.all() and last.known.all() and not last.new.any() and not last.from_device.any()
    assert ledger.numbers(slot) == (9, 8, 0, 0)
    # The device knows by then where it stands: the next step may be planned at once.
    decodes, chunks = ledger.books.rows_left(slots)
    assert decodes.all() and not chunks.any()
    for plan, length in ((first, 6), (last, 8)):
        appended, live, lengths = ledger.books.settle(plan, np.array([[58]]), np.array([1]))
        assert (appended.tolist(), live.tolist(), lengths.tolist()) == ([0], [True], [length])
    assert ledger.numbers(slot) == (9, 8, 0, 0)


def test_without_drafts_recomputing_ends_with_a_new_token() -> None:
    ledger = Ledger(SchedulerLimits(32, 16, 4, 2))
    slot = ledger.running(5, 4, 0)
    plan = ledger.seal([], [(slot, 9)])
    assert plan.sample.all() and plan.new.all() and ledger.numbers(slot) == (9, 9, 1, 1)
    appended, _, lengths = ledger.books.settle(plan, np.array([60]), None)
    assert (appended.tolist(), lengths.tolist()) == ([1], [9]) and ledger.numbers(slot) == (10, 9, 0, 0)


def test_a_request_that_was_put_back_gets_nothing() -> None:
    ledger = Ledger()
    slot = ledger.running(5, 2, 6)
    plan = ledger.seal([slot])
    ledger.table.epoch[slot] += 1
    ledger.table.num_computed[slot] = ledger.table.num_pending[slot] = ledger.table.num_drawing[slot] = 0
    appended, live, _ = ledger.books.settle(plan, np.array([[60, 61]]), np.array([2]))
    assert (appended.tolist(), live.tolist()) == ([0], [False]) and ledger.numbers(slot) == (7, 0, 0, 0)


def test_undo_restores_every_number() -> None:
    ledger = Ledger()
    slot, prompt = ledger.running(5, 2, 6), ledger.running(9, 0, 4)
    before = ledger.numbers(slot), ledger.numbers(prompt)
    plan = ledger.seal([slot], [(prompt, 5)])
    assert plan.sample.all() and plan.total_rows == 9 and plan.row_ends.tolist() == [0, 9]
    assert (ledger.numbers(slot), ledger.numbers(prompt)) == ((7, 10, 4, 1), (9, 9, 1, 1))
    ledger.books.undo(plan)
    assert (ledger.numbers(slot), ledger.numbers(prompt)) == before


@pytest.mark.parametrize("prompt", [1, 5])
def test_the_last_row_of_a_prompt_is_a_chunk(prompt: int) -> None:
    """Its token comes from the host, so it is no decode row, even where it is the only row."""
    ledger = Ledger()
    slot = ledger.running(prompt, 0, prompt - 1)
    decodes, chunks = ledger.books.rows_left(np.array([slot], dtype=np.int32))
    assert (decodes.tolist(), chunks.tolist()) == ([False], [True])

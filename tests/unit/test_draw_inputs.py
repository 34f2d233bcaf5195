"""What the host hands to the draw of a step, by hand: rows, positions, drafts, known tokens and rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tandem.engine.draws import DrawBuilder, Draws
from tandem.engine.outputs import LiveRequest
from tandem.engine.plan import StepPlan
from tandem.engine.request_state import Sampling
from tandem.engine.requests import RequestTable
from tandem.engine.rules import LogitRules
from tandem.engine.speculation import SpeculationBook
from tandem.sampling.params import SamplingParams
from tandem.speculation.verify import VerifyBudget

BANNED = float("-inf")


class Desk:
    """Requests and a builder with three drafts a request."""

    def __init__(self) -> None:
        self.table, self.live = RequestTable(8, 60), dict[int, LiveRequest]()
        self.book = SpeculationBook(8, 3, VerifyBudget(8, 3))
        self.builder = DrawBuilder(self.table, self.book, words=2)

    def request(self, prompt: int, output: list[int], params: SamplingParams | None = None, **numbers: Any) -> int:
        slot = self.table.create(range(10, 10 + prompt), Sampling(20, **numbers))
        self.table.append(np.array([slot]), np.array([output]), np.array([len(output)]))
        self.table.ruled[slot] = params is not None
        self.live[slot] = LiveRequest(slot, tuple(range(10, 10 + prompt)), params or SamplingParams(), None, 1)
        self.live[slot].slot = slot
        return slot

    def plan(self, decodes: list[int], chunks: list[tuple[int, int, int, bool, bool]]) -> StepPlan:
        """Decode entries of 4 rows; chunks of (slot, start, rows, sample, known)."""
        slots = np.array(decodes + [chunk[0] for chunk in chunks], dtype=np.int32)
        flags = [np.array([True] * len(decodes) + [c[i] for c in chunks], dtype=np.bool_) for i in (3, 4)]
        flags[1][: len(decodes)] = False
        return StepPlan(
            slots,
            np.array([4] * len(decodes) + [chunk[2] for chunk in chunks], dtype=np.int32),
            np.array([30] * len(decodes) + [chunk[1] for chunk in chunks], dtype=np.int32),
            *flags,
            np.ones(len(slots), dtype=np.bool_),
            self.table.epoch[slots],
            (),
            speculative=len(decodes),
            draft_rows=4 * len(decodes),
        )

    def build(self, plan: StepPlan, counts: list[int] | None) -> Draws:
        given = None if counts is None else np.array(counts, dtype=np.int32)
        draws = self.builder.build(plan, given, self.live)
        assert draws is not None
        return draws


def test_rows_positions_and_drafts() -> None:
    """Two decode entries of 3 and 1 rows, a chunk that only reads, one that draws, one that draws what is known."""
    desk = Desk()
    first, second = desk.request(5, [50, 51], seed=7), desk.request(3, [52], temperature=0.5)
    reads, draws, again = desk.request(9, []), desk.request(4, []), desk.request(4, [53, 54])
    chunks = [(reads, 0, 6, False, False), (draws, 1, 3, True, False), (again, 2, 3, True, True)]
    got = desk.build(desk.plan([first, second], chunks), [3, 1])
    assert got.entries.tolist() == [0, 1, 3, 4] and got.slots.tolist() == [first, second, draws, again]
    assert (got.counts.tolist(), got.first.tolist()) == ([3, 1, 1, 1], [0, 3, 4, 5])
    # The newest tokens stand at 6 and 3, where the table says; the last rows of the chunks at 3 and 4.
    assert got.base.tolist() == [6, 3, 3, 4]
    # 8 rows for drafts, 6 that only read, then the last rows of 3 and 3.
    assert got.rows.tolist() == [0, 1, 2, 3, 16, 19]
    assert (got.segment.tolist(), got.column.tolist()) == ([0, 0, 0, 1, 2, 3], [0, 1, 2, 0, 0, 0])
    assert got.inputs.position.tolist() == [7, 8, 9, 4, 4, 5]
    assert got.inputs.draft_row.tolist() == [3 * first, 3 * first + 1, -1, -1, -1, -1]
    # Six tokens are known of the last one, and the row at 4 gives the one at 5.
    assert got.inputs.forced.tolist() == [-1, -1, -1, -1, -1, 54] and got.known.tolist() == [False, False, False, True]
    assert got.inputs.numbers.seed.tolist() == [7, 7, 7, 0, 0, 0]
    assert got.inputs.numbers.temperature.tolist() == [1, 1, 1, 0.5, 1, 1]
    assert got.table(np.arange(6, dtype=np.int32) + 90).tolist() == [
        [90, 91, 92], [93, -1, -1], [94, -1, -1], [95, -1, -1]
    ]  # fmt: skip


def test_what_was_put_back_or_replaced_draws_nothing() -> None:
    desk = Desk()
    gone, stays = desk.request(5, [50]), desk.request(5, [50])
    plan = desk.plan([gone, stays], [])
    desk.table.epoch[gone] += 1
    got = desk.build(plan, [4, 2])
    assert got.slots.tolist() == [stays]
    assert got.rows.tolist() == [4, 5]  # its rows stand behind the four of the other
    assert got.inputs.draft_row.tolist() == [3 * stays, -1]
    desk.table.epoch[stays] += 1
    assert desk.builder.build(plan, np.array([4, 2], dtype=np.int32), desk.live) is None


def test_rules_follow_the_drafts() -> None:
    """Each row counts the drafts before it as written."""
    desk = Desk()
    params = SamplingParams(
        presence_penalty=1.0, forced_token_ids=(50, 51, 52, 53), min_tokens=4, logit_bias={8: 2.0}, logprobs=5
    )
    slot = desk.request(2, [50, 51], params)
    desk.book.tokens[slot] = (40, 51, 41)
    inputs = desk.build(desk.plan([slot], []), [4]).inputs
    assert inputs.forced.tolist() == [52, 53, -1, -1]
    # Two are written before the first row, so the end token is banned in two rows.
    assert inputs.edits == [
        (0, 1, BANNED), (0, 8, 2.0), (1, 1, BANNED), (1, 8, 2.0), (2, 8, 2.0), (3, 8, 2.0)
    ]  # fmt: skip
    seen = [[token for at, token, _, minus in inputs.penalties if at == row and minus == 1] for row in range(4)]
    assert seen == [[50, 51], [40, 50, 51], [40, 50, 51], [40, 41, 50, 51]]
    assert (inputs.top_n, inputs.top_processed) == (5, False)


def test_a_known_token_is_under_no_rule() -> None:
    """It was drawn under them before; its place in the text counts for those after it."""
    desk = Desk()
    params = SamplingParams(presence_penalty=1.0, min_tokens=9, forced_token_ids=(1, 2, 3))
    slot = desk.request(2, [50, 51], params)
    inputs = desk.build(desk.plan([], [(slot, 0, 3, True, True)]), None).inputs
    assert inputs.forced.tolist() == [51] and not inputs.edits and not inputs.penalties


def test_edits() -> None:
    rules = LogitRules(SamplingParams(min_tokens=3, logit_bias={7: 1.5, 1: 4.0}), 2, (1, 9))
    assert rules.any
    assert rules.edits(6, 2) == [(6, 1, BANNED), (6, 7, 1.5), (6, 9, BANNED)]
    assert rules.edits(6, 3) == [(6, 1, 4.0), (6, 7, 1.5)]
    assert not LogitRules(SamplingParams(), 2, ()).any


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"presence_penalty": 0.5}, {5: (1.0, 0.5), 6: (1.0, 0.5)}),
        ({"frequency_penalty": 0.25}, {5: (1.0, 0.75), 6: (1.0, 0.25)}),
        ({"presence_penalty": 0.5, "frequency_penalty": -0.25}, {5: (1.0, -0.25), 6: (1.0, 0.25)}),
        ({"repetition_penalty": 1.5}, {3: (1.5, 0.0), 4: (1.5, 0.0), 5: (1.5, 0.0), 6: (1.5, 0.0)}),
        (
            {"repetition_penalty": 1.5, "presence_penalty": 1.0},
            {3: (1.5, 0.0), 4: (1.5, 0.0), 5: (1.5, 1.0), 6: (1.5, 1.0)},
        ),
    ],
)
def test_penalties(given: dict[str, float], want: dict[int, tuple[float, float]]) -> None:
    """Prompt 3 4, output 5 5, drafts 6 5: of the output 5 was seen three times, 6 once."""
    rules = LogitRules(SamplingParams(**given), 2, ())
    found = rules.penalties(4, np.array([3, 4, 5, 5], dtype=np.int32), [6, 5])
    assert rules.any and [item[:2] for item in found] == [(4, token) for token in sorted(want)]
    assert {token: (again, minus) for _, token, again, minus in found} == want

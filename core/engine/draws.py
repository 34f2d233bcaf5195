"""What a step draws: which rows, at which positions, under which rules; built on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tandem.engine.outputs import LiveRequest
from tandem.engine.plan import Int32, StepPlan
from tandem.engine.requests import RequestTable
from tandem.engine.speculation import SpeculationBook
from tandem.sampling.sampler import DrawInputs
from tandem.structured.guide import Guide

Index = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Draws:
    """The draws of a step, in segments: one a request, whose rows stand one behind another.

    Args:
        entries: int [n], entries of the plan that draw and still count.
        slots, counts, first, base: int32 [n], their slots, rows, first row among the N that draw, and position of
            that row's token.
        rows: int32 [N], rows of the step.
        segment, column: int [N], segment of each row and place in it.
        inputs: for the sampler.
        guides: grammars by segment.
        known: bool [n], segments whose token was known, and is in the grammar's state already.
        plain: whether every request draws one token, by its numbers alone.
    """

    entries: Index
    slots: Int32
    counts: Int32
    first: Int32
    base: Int32
    rows: Int32
    segment: Index
    column: Int32
    inputs: DrawInputs
    guides: Mapping[int, Guide]
    known: npt.NDArray[np.bool_]
    plain: bool = False

    def table(self, values: npt.NDArray[np.int32]) -> Int32:
        """Values [N] of rows as [n, most rows of a segment], filled with -1; those of a turn [N, steps] as they are."""
        if self.plain:
            return values if values.ndim == 2 else values[:, None]
        found: Int32 = np.full((len(self.entries), int(self.counts.max(initial=1))), -1, dtype=np.int32)
        found[self.segment, self.column] = values
        return found

    def by_entry(self, number: int, tokens: Int32, counts: Int32) -> tuple[Int32, Int32]:
        """Tokens int32 [n, m] and counts int32 [n] for all ``number`` entries of the plan, -1 and 0 for the others."""
        if len(self.entries) == number:
            return tokens, counts
        all_tokens = np.full((number, tokens.shape[1]), -1, dtype=np.int32)
        all_counts = np.zeros(number, dtype=np.int32)
        all_tokens[self.entries], all_counts[self.entries] = tokens, counts
        return all_tokens, all_counts


class _Rules:
    """What single requests ask for beyond their numbers, collected over a step."""

    def __init__(self, forced: Int32) -> None:
        self.forced = forced
        self.edits: list[tuple[int, int, float]] = []
        self.penalties: list[tuple[int, int, float, float]] = []
        self.bits: Int32 | None = None
        self.guides: dict[int, Guide] = {}
        self.top_n, self.top_processed = 0, False


class DrawBuilder:
    """Turns a plan into draws.

    Args:
        table: the requests; the results of all earlier steps are in it.
        book: what the host knows of drafts; None without speculation.
        words: int32 words of a grammar's mask.
    """

    def __init__(self, table: RequestTable, book: SpeculationBook | None, words: int) -> None:
        self._table, self._book, self._words = table, book, words
        self._width = 1 if book is None else book.count

    def build(self, plan: StepPlan, counts: Int32 | None, live: Mapping[int, LiveRequest]) -> Draws | None:
        """The draws of a plan, None if nothing draws.

        Args:
            plan: a step whose forward part is queued.
            counts: int32 [speculative], rows that the device gave each of them.
            live: running requests by slot.
        """
        table = self._table
        alive = plan.sample & (table.epoch[plan.slots] == plan.epochs)
        entries = np.flatnonzero(alive)
        if not len(entries):
            return None
        if self._book is None and counts is None and not (plan.known | table.ruled[plan.slots]).any():
            return self._plain(plan, entries)
        return self._general(plan, entries, counts, live)

    def _general(
        self, plan: StepPlan, entries: Index, counts: Int32 | None, live: Mapping[int, LiveRequest]
    ) -> Draws:
        table = self._table
        rows_of = np.ones(len(plan), dtype=np.int32)
        first_row, base = plan.row_ends - 1, plan.ends - 1
        if counts is not None:
            spec = plan.speculative
            rows_of[:spec] = counts
            first_row[:spec] = np.cumsum(counts) - counts
            base[:spec] = table.num_tokens[plan.slots[:spec]] - 1
        slots, number, base = plan.slots[entries], rows_of[entries], base[entries]
        first = (np.cumsum(number) - number).astype(np.int32)
        segment = np.repeat(np.arange(len(entries)), number)
        column = (np.arange(len(segment)) - first[segment]).astype(np.int32)
        owner = slots[segment]
        draft_row = np.where(column < number[segment] - 1, owner * self._width + column, -1).astype(np.int32)
        forced = np.full(len(segment), -1, dtype=np.int32)
        known = plan.known[entries]
        forced[first[known]] = table.tokens[slots[known], base[known] + 1]
        rules = _Rules(forced)
        for index in np.flatnonzero(table.ruled[slots]).tolist():
            request = live[int(slots[index])]
            if request.guide is not None and not request.guide.failed:
                rules.guides[index] = request.guide
            if not known[index]:
                self._apply(rules, index, request, int(first[index]), int(number[index]), int(base[index]))
        return Draws(
            entries=entries,
            slots=slots,
            counts=number,
            first=first,
            base=base,
            rows=first_row[entries][segment] + column,
            segment=segment,
            column=column,
            inputs=DrawInputs(
                numbers=table.numbers(owner),
                position=base[segment].astype(np.int64) + 1 + column,
                draft_row=draft_row,
                forced=forced,
                penalties=rules.penalties,
                edits=rules.edits,
                bits=rules.bits,
                top_n=rules.top_n,
                top_processed=rules.top_processed,
            ),
            guides=rules.guides,
            known=known,
        )

    def _plain(self, plan: StepPlan, entries: Index) -> Draws:
        """Draws where every request that draws has one row and no rules."""
        table, count = self._table, len(entries)
        slots, base = plan.slots[entries], (plan.ends - 1)[entries]
        none, zeros = np.full(count, -1, dtype=np.int32), np.zeros(count, dtype=np.int32)
        return Draws(
            entries=entries,
            slots=slots,
            counts=zeros + 1,
            first=np.arange(count, dtype=np.int32),
            base=base,
            rows=(plan.row_ends - 1)[entries],
            segment=np.arange(count),
            column=zeros,
            inputs=DrawInputs(table.numbers(slots), base.astype(np.int64) + 1, none, none),
            guides={},
            known=plan.known[entries],
            plain=True,
        )

    def _apply(self, rules: _Rules, index: int, request: LiveRequest, first: int, count: int, base: int) -> None:
        """Write the rules of one request for its rows, whose drafts are taken as if accepted."""
        slot_tokens = self._table.tokens[request.slot]
        drafts = [] if self._book is None else self._book.tokens[request.slot, : count - 1].tolist()
        params = request.params
        if params.logprobs is not None:
            rules.top_n = max(rules.top_n, params.logprobs)
            rules.top_processed |= params.processed_logprobs
        start = len(request.prompt)
        known = slot_tokens[: base + 1]
        for column in range(count):
            row, written = first + column, base + 1 + column - start
            if 0 <= written < len(params.forced_token_ids):
                rules.forced[row] = params.forced_token_ids[written]
            rules.edits += request.rules.edits(row, written)
            rules.penalties += request.rules.penalties(row, known, drafts[:column])
        masks = []
        if request.guide is not None and index in rules.guides:
            masks.append(request.guide.masks(drafts))
        if request.bad_words is not None:
            masks.append(request.bad_words.masks(known[start:].tolist(), drafts, count))
        for mask in masks:
            if rules.bits is None:
                rules.bits = np.full((len(rules.forced), self._words), -1, dtype=np.int32)
            rules.bits[first : first + count, : mask.shape[1]] &= mask

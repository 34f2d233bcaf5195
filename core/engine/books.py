"""The accounting of rows and draws: what steps in flight will have computed and drawn, and what they did."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tandem.cache.pool import AccountingError
from tandem.engine.plan import Bools, Int32, SchedulerLimits, StepDraft, StepPlan
from tandem.engine.requests import RequestTable

# (slots [n], other rows of the step) -> rows for these n entries together, n at least.
ChooseRows = Callable[[Int32, int], int]


class StepBooks:
    """Keeps ``num_computed``, ``num_pending`` and ``num_drawing`` of a request table in step with the plans.

    Args:
        table: the requests.
        limits: bounds of a step.
        choose_rows: how many rows the speculative entries of a step share; None gives them all they can use.
    """

    def __init__(self, table: RequestTable, limits: SchedulerLimits, choose_rows: ChooseRows | None = None) -> None:
        self._table, self._limits, self._choose_rows = table, limits, choose_rows

    def goals(self, slots: Int32) -> tuple[Int32, Bools]:
        """Where the next rows of each slot end (int32 [n]), and whether they recompute up to a known token."""
        table = self._table
        known, pending = table.num_tokens[slots], table.num_pending[slots]
        recomputes = np.zeros(len(slots), dtype=np.bool_)
        if self._limits.draft_tokens:
            recomputes = (pending == 0) & (known > table.prompt_len[slots]) & (table.num_computed[slots] < known - 1)
        return known + pending - recomputes, recomputes

    def rows_left(self, slots: Int32) -> tuple[Bools, Bools]:
        """Which of some running slots have a decode row to run, and which a chunk; bool [n] each."""
        table = self._table
        goals, recomputes = self.goals(slots)
        left = goals - table.num_computed[slots]
        # With its last token known or being drawn a request needs no more rows.
        left[table.num_tokens[slots] + table.num_drawing[slots] >= table.limit[slots]] = 0
        decodes = left == 1
        if self._limits.draft_tokens:
            # A first row comes from the host, tokens and drafts of a decode row from the device.
            decodes &= (goals > table.prompt_len[slots]) & ~recomputes
        return decodes, (left > 0) & ~decodes

    def decode_ends(self, slots: Int32) -> Int32:
        """One past the highest position at which each decode entry may write something that counts."""
        highest: Int32 = self._table.num_computed[slots] + 1 + self._limits.draft_tokens
        return np.minimum(highest, self._table.limit[slots] - 1)

    def seal(self, step: StepDraft, steps: int = 1) -> StepPlan:
        """Make a plan of a draft, for so many steps; rows count as computed and draws as pending from here on."""
        table = self._table
        decodes = len(step.decodes)
        slots = np.concatenate((step.decodes, np.array(step.slots, dtype=np.int32)))
        rows = np.full(len(slots), step.each, dtype=np.int32)
        rows[decodes:] = step.rows
        starts = table.num_computed[slots]
        speculative = decodes if self._limits.draft_tokens else 0
        ends = starts + rows
        from_device = ends > table.num_tokens[slots]
        from_device[:speculative] = True
        # A decode entry draws what is not known yet; see `rows_left`.
        sample, recomputes = np.ones(len(slots), dtype=np.bool_), np.zeros(len(slots), dtype=np.bool_)
        if step.slots:
            goals, recomputes[decodes:] = self.goals(slots[decodes:])
            sample[decodes:] = ends[decodes:] == goals
        draft_rows = int(rows[:speculative].sum())
        if speculative and self._choose_rows is not None:
            draft_rows = self._choose_rows(slots[:speculative], int(rows[speculative:].sum()))
        plan = StepPlan(
            slots,
            rows,
            starts,
            sample,
            sample & recomputes,
            from_device,
            table.epoch[slots],
            tuple(step.preempted),
            speculative,
            draft_rows,
            tuple(step.started),
            steps,
        )
        most = plan.most_tokens
        table.num_computed[slots] = ends + (steps - 1)
        table.num_pending[slots] += most
        table.num_drawing[slots] += most > 0
        return plan

    def settle(self, plan: StepPlan, tokens: npt.ArrayLike, counts: npt.ArrayLike | None) -> tuple[Int32, Bools, Int32]:
        """Take a step that has run off the books, and append its tokens.

        Args:
            plan, tokens, counts: as `Scheduler.commit`.

        Returns:
            int32 [n] tokens appended, bool [n] entries that still count, int32 [n] their committed lengths.
        """
        drawn = np.asarray(tokens, dtype=np.int32)
        drawn = drawn[:, None] if drawn.ndim == 1 else drawn
        emitted = np.ones(len(plan), dtype=np.int32) if counts is None else np.asarray(counts, dtype=np.int32)
        if drawn.ndim != 2 or len(drawn) != len(plan) or emitted.shape != plan.slots.shape:
            raise AccountingError(
                "a step got a wrong number of tokens",
                where="StepBooks.settle",
                why=f"{drawn.shape} for {len(plan)} entries",
                fix="report this: the engine and the scheduler disagree",
            )
        table, slots, most = self._table, plan.slots, plan.most_tokens
        live = table.epoch[slots] == plan.epochs
        self._close(slots[live], most[live])
        useful = live & plan.new & (drawn[:, 0] >= 0)
        room = table.limit[slots] - table.num_tokens[slots]
        appended = np.where(useful, np.minimum(emitted, room), 0).astype(np.int32)
        table.append(slots[useful], drawn[useful], appended[useful])
        lengths = plan.ends
        uncertain = plan.uncertain
        moved = live[uncertain]
        table.num_computed[slots[uncertain][moved]] -= (most - appended)[uncertain][moved]
        lengths[uncertain] = table.num_tokens[slots[uncertain]] - 1
        return appended, live, lengths

    def undo(self, plan: StepPlan) -> None:
        """Take a step that has not run off the books."""
        live = self._table.epoch[plan.slots] == plan.epochs
        slots = plan.slots[live]
        self._table.num_computed[slots] -= plan.num_rows[live] + (plan.steps - 1)
        self._close(slots, plan.most_tokens[live])

    def _close(self, slots: Int32, most: Int32) -> None:
        """The draws of a step are no longer pending."""
        self._table.num_pending[slots] -= most
        self._table.num_drawing[slots] -= most > 0

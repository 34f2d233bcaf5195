"""Decides which rows of which requests run in the next step.

Every live request is treated alike: it has ``num_tokens + num_pending - num_computed`` rows left.  One row
left is a decode row; more are a prompt, or tokens to recompute after the request was put back.  A step takes
the decode rows first, oldest first, then chunks in arrival order, within a budget of rows.

Blocks are taken for the rows of the step only.  When none is left, the youngest running request is put back:
it loses its blocks and starts again later, with the same result.  Older requests are never put back for
younger ones, and a request is not put back for itself but waits; so the oldest always moves, and all end.

A step may be scheduled while earlier ones are still running: `schedule` counts its rows as computed and its
draws as pending, `commit` settles them in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tandem.cache.pool import AccountingError
from tandem.cache.space import CacheSpace, Pools, Tables
from tandem.cache.tables import blocks_for
from tandem.engine.plan import Bools, Int32, SchedulerLimits, StepDraft, StepPlan
from tandem.engine.requests import RequestTable, Status
from tandem.engine.spans import leading_span, longest_span, whole_spans
from tandem.errors import CapacityError, ConfigError, RequestError


class Scheduler:
    """Continuous batching over the requests of a table.

    Args:
        table: the requests.
        pools, tables: blocks of the main and window caches and the tables that map them.
        limits: bounds of a step.

    Raises:
        ConfigError: the window table or pool is too small for the limits.
    """

    def __init__(self, table: RequestTable, pools: Pools, tables: Tables, limits: SchedulerLimits) -> None:
        geometry = tables.window.geometry
        if (
            geometry.longest_chunk < limits.max_tokens_per_step
            or geometry.steps_in_flight < limits.max_in_flight
        ):
            raise ConfigError(
                "the window table is too narrow for the scheduler",
                where="Scheduler",
                why=f"{geometry} against {limits}",
                fix="make longest_chunk max_tokens_per_step and steps_in_flight max_in_flight",
            )
        if pools.window.num_blocks < geometry.pages(1):
            raise ConfigError(
                "the window pool cannot serve one request",
                where="Scheduler",
                why=f"it has {pools.window.num_blocks} blocks, one request needs {geometry.pages(1)}",
                fix="give the window pool more blocks",
            )
        self._table, self._limits = table, limits
        self._space, self._pools, self._tables = CacheSpace(pools, tables), pools, tables
        self._waiting: deque[int] = deque()  # by arrival
        self._running: list[int] = []  # by arrival
        self._running_array: Int32 | None = None
        self._in_flight: deque[StepPlan] = deque()

    @property
    def waiting(self) -> Sequence[int]:
        """Queued slots, oldest first."""
        return tuple(self._waiting)

    @property
    def running(self) -> Sequence[int]:
        """Admitted slots, oldest first."""
        return tuple(self._running)

    @property
    def idle(self) -> bool:
        """Whether no request is queued or running."""
        return not self._running and not self._waiting

    @property
    def in_flight(self) -> int:
        """Steps scheduled and not yet committed."""
        return len(self._in_flight)

    # -- requests come and go ----------------------------------------------------------------

    def add(self, slot: int) -> None:
        """Queue a new request.

        Raises:
            RequestError: an image span of it is longer than a step; the slot is left to the caller to free.
            CapacityError: it would not fit even alone; likewise.
        """
        self._check_new(slot)
        self._table.status[slot] = Status.WAITING
        self._waiting.append(slot)

    def adopt(self, slot: int, num_computed: int) -> bool:
        """Run a new request whose first ``num_computed`` tokens come with their cache contents.

        Blocks for them are taken; the caller fills them before the next step.  Window pages start at that of
        ``tables.window.keep_from(num_computed)``.

        Returns:
            False, with nothing changed, when there is no room now or others wait: use `add` and recompute.

        Raises:
            RequestError, CapacityError: as `add`.
        """
        self._check_new(slot)
        if not 0 < num_computed < self._table.num_tokens[slot]:
            raise _misuse(
                "a request was adopted with a wrong length", f"slot {slot}, {num_computed} tokens computed"
            )
        if self._waiting or len(self._running) >= self._limits.max_running:
            return False
        if not self._space.take_tail(slot, num_computed):
            return False
        self._table.num_computed[slot] = num_computed
        self._start(slot)
        return True

    def finish(self, slot: int) -> None:
        """End a running request: its blocks and slot are free at once, results in flight no longer count."""
        if self._table.status[slot] != Status.RUNNING:
            raise _misuse("a request that is not running was finished", f"slot {slot}")
        self._drop(slot)

    def cancel(self, slot: int) -> None:
        """End a queued or running request."""
        if self._table.status[slot] not in (Status.WAITING, Status.RUNNING):
            raise _misuse("a request that is not scheduled was cancelled", f"slot {slot}")
        self._drop(slot)

    def _drop(self, slot: int) -> None:
        if self._table.status[slot] == Status.RUNNING:
            self._stop(slot)
        else:
            self._waiting.remove(slot)
        self._table.free(slot)

    def _check_new(self, slot: int) -> None:
        table, window = self._table, self._tables.window
        if table.status[slot] != Status.NEW:
            raise _misuse("a request was given to the scheduler twice", f"slot {slot}")
        length = int(table.limit[slot]) - 1  # the last token is drawn and never computed
        blocks = blocks_for(length, self._tables.main.block_size)
        if blocks > self._pools.main.num_blocks:
            raise CapacityError(
                "a request can never fit into the cache",
                where=f"prompt of {table.prompt_len[slot]} tokens, max_tokens {table.max_tokens[slot]}",
                why=f"it needs {blocks} blocks, the cache has {self._pools.main.num_blocks}",
                fix="shorten the prompt, lower max_tokens, or give the cache more blocks",
            )
        span = (
            longest_span(table.roles_array()[slot, : table.prompt_len[slot]]) if table.has_roles[slot] else 0
        )
        if span > self._limits.max_tokens_per_step:
            raise RequestError(
                "an image span is longer than a step",
                where="roles",
                why=f"it has {span} tokens, a step has {self._limits.max_tokens_per_step} rows",
                fix="use a smaller image, or raise scheduler.max_tokens_per_step",
            )
        pages = window.geometry.pages(max(1, span))
        if pages > self._pools.window.num_blocks:
            raise CapacityError(
                "an image span can never fit into the window cache",
                where="roles",
                why=f"{span} tokens need {pages} blocks, there are {self._pools.window.num_blocks}",
                fix="use a smaller image, or give the window cache more blocks",
            )

    # -- one step ----------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Choose the rows of the next step and take blocks for them.

        Returns:
            The plan.  An empty one is not to be run or committed; it means that there is no request, or that
            every one waits for a step in flight.

        Raises:
            AccountingError: ``max_in_flight`` steps are in flight already.
        """
        if len(self._in_flight) >= self._limits.max_in_flight:
            raise _misuse("a step was scheduled too early", f"{len(self._in_flight)} steps are in flight")
        step = StepDraft(self._limits.max_tokens_per_step)
        if self._running:
            slots, left = self._rows_left()
            self._take_decodes(step, slots[left == 1])
            for slot in slots[left > 1].tolist():
                if self._table.status[slot] == Status.RUNNING:
                    self._continue_chunk(step, slot)
        self._admit(step)
        plan = self._seal(step)
        if len(plan):
            self._in_flight.append(plan)
        return plan

    def commit(self, plan: StepPlan, tokens: npt.ArrayLike) -> Bools:
        """Settle the oldest step in flight.

        Args:
            plan: that step.
            tokens: int [n], the token drawn by each entry; entries that do not sample are ignored, -1 means
                that nothing could be drawn (the caller ends such a request).

        Returns:
            bool [n], entries whose token was appended to their request.  False for requests that were
            cancelled, finished or put back since the step was scheduled.
        """
        if not self._in_flight or self._in_flight[0] is not plan:
            raise _misuse("a step was committed out of order", f"{len(self._in_flight)} steps are in flight")
        drawn = np.asarray(tokens, dtype=np.int32)
        if drawn.shape != plan.slots.shape:
            raise _misuse("a step got a wrong number of tokens", f"{drawn.shape} for {len(plan)} entries")
        self._in_flight.popleft()
        table = self._table
        live = table.epoch[plan.slots] == plan.epochs
        draws = live & plan.sample
        table.num_pending[plan.slots[draws]] -= 1
        appended: Bools = draws & (drawn >= 0)
        table.append(plan.slots[appended], drawn[appended])
        self._space.trim(plan.slots[live], plan.ends[live])
        return appended

    def rollback(self, plan: StepPlan) -> None:
        """Take back the newest step in flight, which was not run; its blocks stay with their requests."""
        if not self._in_flight or self._in_flight[-1] is not plan:
            raise _misuse(
                "a step was rolled back out of order", f"{len(self._in_flight)} steps are in flight"
            )
        self._in_flight.pop()
        live = self._table.epoch[plan.slots] == plan.epochs
        self._table.num_computed[plan.slots[live]] = plan.starts[live]
        self._table.num_pending[plan.slots[live & plan.sample]] -= 1

    def abandon(self, plan: StepPlan) -> None:
        """Take back the newest step in flight, which failed after it may have written something.

        Paged entries are written again in place.  Rings keep only the newest positions: a chunk longer than their
        margin may have overwritten what its own first rows read, so from the first such request on all are put back.
        """
        self.rollback(plan)
        torn = set(plan.slots[plan.num_rows > self._tables.window.geometry.rollback].tolist())
        first = next((i for i, slot in enumerate(self._running) if slot in torn), len(self._running))
        for slot in reversed(self._running[first:]):
            self._put_back(slot)

    def rewind(self, slot: int, rows: int) -> None:
        """Let the last ``rows`` computed rows of a running request count as not computed (rejected drafts).

        Their cache entries are overwritten in place later; the window still holds what they read.
        """
        margin = self._tables.window.geometry.rollback
        running = self._table.status[slot] == Status.RUNNING
        if not (running and 0 <= rows <= min(margin, int(self._table.num_computed[slot]))):
            raise _misuse("a request was rewound too far", f"slot {slot}, {rows} rows, margin {margin}")
        self._table.num_computed[slot] -= rows

    def _rows_left(self) -> tuple[Int32, Int32]:
        if self._running_array is None:
            self._running_array = np.array(self._running, dtype=np.int32)
        slots, table = self._running_array, self._table
        total = table.num_tokens[slots] + table.num_pending[slots]
        left = total - table.num_computed[slots]
        # With its last token known or being drawn a request needs no more rows.
        left[total >= table.limit[slots]] = 0
        return slots, left

    def _take_decodes(self, step: StepDraft, slots: Int32) -> None:
        slots = slots[: step.budget]
        if not self._space.grow_by_one(slots, self._table.num_computed[slots]):
            slots = self._place_one_by_one(step, slots)
        step.slots = slots.tolist()
        step.rows = [1] * len(step.slots)
        step.budget -= len(step.slots)

    def _place_one_by_one(self, step: StepDraft, slots: Int32) -> Int32:
        """Give each decode row its blocks, oldest first, putting back the youngest requests as needed."""
        placed = []
        for slot in slots.tolist():
            if self._table.status[slot] == Status.RUNNING and self._make_room(step, slot, 1):
                self._space.grow(slot, int(self._table.num_computed[slot]) + 1)
                placed.append(slot)
        return np.array(placed, dtype=np.int32)

    def _continue_chunk(self, step: StepDraft, slot: int) -> None:
        least = self._least_rows(slot)
        if step.can_offer(least) and self._make_room(step, slot, least):
            self._place_chunk(step, slot, least, self._room(slot))

    def _admit(self, step: StepDraft) -> None:
        """Start waiting requests, in order, if running ones found all they needed."""
        while self._waiting and len(self._running) < self._limits.max_running:
            if step.preempted or step.short:
                return
            slot = self._waiting[0]
            least = self._least_rows(slot)
            # Room is left for running requests to grow by a block, or they would put this one back at once.
            running = np.array(self._running, dtype=np.int32)
            spare = self._space.growing(running, self._table.limit[running] - 1)
            room = self._room(slot, spare)
            if room < least or not step.can_offer(least):
                return
            self._waiting.popleft()
            self._start(slot)
            self._place_chunk(step, slot, least, room)

    def _place_chunk(self, step: StepDraft, slot: int, least: int, room: int) -> None:
        step.displace(least)
        table = self._table
        start, total = int(table.num_computed[slot]), int(table.num_tokens[slot] + table.num_pending[slot])
        most = min(total - start, step.budget, room)
        rows = min(most, self._limits.max_chunk)
        if table.has_roles[slot]:
            rows = whole_spans(table.roles_array()[slot, start:total], rows, most)
        self._space.grow(slot, start + rows)
        step.add_chunk(slot, rows)

    def _seal(self, step: StepDraft) -> StepPlan:
        table = self._table
        slots = np.array(step.slots, dtype=np.int32)
        rows = np.array(step.rows, dtype=np.int32)
        starts = table.num_computed[slots]
        ends, known = starts + rows, table.num_tokens[slots]
        sample = ends == known + table.num_pending[slots]
        table.num_computed[slots] = ends
        table.num_pending[slots] += sample
        return StepPlan(slots, rows, starts, sample, ends > known, table.epoch[slots], tuple(step.preempted))

    # -- room --------------------------------------------------------------------------------

    def _least_rows(self, slot: int) -> int:
        """The smallest chunk that can be run next: one row, or a whole image span."""
        if not self._table.has_roles[slot]:
            return 1
        start, end = int(self._table.num_computed[slot]), int(self._table.prompt_len[slot])
        return max(1, leading_span(self._table.roles_array()[slot, start:end]))

    def _room(self, slot: int, spare: tuple[int, int] = (0, 0)) -> int:
        """Rows that a slot could run with its blocks and all free ones but the spare."""
        return self._space.reach(slot, spare) - int(self._table.num_computed[slot])

    def _make_room(self, step: StepDraft, slot: int, rows: int) -> bool:
        """Put back younger requests until ``slot`` can run ``rows`` rows; False if that is not enough."""
        while self._room(slot) < rows:
            victim = self._running[-1]
            if victim == slot:
                step.short = True
                return False
            self._put_back(victim)
            step.preempted.append(victim)
            step.drop(victim)
        return True

    def _put_back(self, slot: int) -> None:
        """Take the youngest running request off the device; it starts again later, with the same result."""
        self._stop(slot)
        self._table.num_computed[slot] = self._table.num_pending[slot] = 0
        self._table.epoch[slot] += 1
        self._table.preemptions[slot] += 1
        self._table.status[slot] = Status.WAITING
        self._waiting.appendleft(slot)

    def _start(self, slot: int) -> None:
        self._table.status[slot] = Status.RUNNING
        self._running.append(slot)
        self._running_array = None

    def _stop(self, slot: int) -> None:
        """Leave the running list and give every block back."""
        self._running.remove(slot)
        self._running_array = None
        self._space.release(slot)


def _misuse(what: str, why: str) -> AccountingError:
    return AccountingError(
        what, where="Scheduler", why=why, fix="report this: the engine and the scheduler disagree"
    )

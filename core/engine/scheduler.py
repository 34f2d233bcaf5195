"""Decides which rows of which requests run in the next step.

Every live request is treated alike: it has ``num_tokens + num_pending - num_computed`` rows left.  One row
left is a decode row; more are a prompt, or tokens to recompute after the request was put back.  A step takes
the decode rows first, then chunks, within a budget of rows; all in the order of (priority, arrival).

Blocks are taken for the rows of the step only.  When none is left, the last running request in that order is put
back: it loses its blocks and starts again later, with the same result.  No request is put back for a later one,
and a request is not put back for itself but waits; so the first always moves, and all end.

A step may be scheduled while earlier ones are still running: `schedule` counts its rows as computed and its
draws as pending, `commit` settles them in order.  With speculation both counts are the most that can come about:
a decode entry has up to 1 + drafts rows and draws as many tokens; where its rows stand, the device knows.  A request
that is recomputed with speculation stops short of its newest token, which is then emitted once more, so that its
drafts are made as they were before.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tandem.cache.hashing import PLAIN, Identity
from tandem.cache.pool import AccountingError
from tandem.cache.prefix import Match, PrefixCache
from tandem.cache.space import CacheSpace, Pools, Tables
from tandem.engine.books import ChooseRows, StepBooks
from tandem.engine.fits import check_fits, check_limits
from tandem.engine.plan import Int32, SchedulerLimits, StepDraft, StepPlan
from tandem.engine.requests import RequestTable, Status
from tandem.engine.spans import leading_span, whole_spans

# slot -> what names its blocks besides their tokens, and the most tokens it may take from the cache.
Identify = Callable[[int], tuple[Identity, int]]


class Scheduler:
    """Continuous batching over the requests of a table.

    Args:
        table: the requests.
        pools, tables: blocks of the main and window caches and the tables that map them.
        limits: bounds of a step.
        choose_rows: how many rows the speculative entries of a step share; None gives them all they can use.
        prefix: finished blocks that requests may start from; None for none.
        identify: says of a slot what the prefix cache must know; None: its tokens alone.

    Raises:
        ConfigError: the window table or pool is too small for the limits.
    """

    def __init__(
        self,
        table: RequestTable,
        pools: Pools,
        tables: Tables,
        limits: SchedulerLimits,
        choose_rows: ChooseRows | None = None,
        prefix: PrefixCache | None = None,
        identify: Identify | None = None,
    ) -> None:
        check_limits(pools, tables, limits)
        self._table, self._limits = table, limits
        self._space, self._pools, self._tables = CacheSpace(pools, tables, prefix), pools, tables
        self._books, self._identify = StepBooks(table, limits, choose_rows), identify
        self._waiting: list[int] = []  # by priority and arrival
        self._running: list[int] = []  # likewise
        self._running_array: Int32 | None = None
        self._in_flight: deque[StepPlan] = deque()

    @property
    def limits(self) -> SchedulerLimits:
        """Bounds of a step."""
        return self._limits

    @property
    def waiting(self) -> Sequence[int]:
        """Queued slots, in the order in which they start."""
        return tuple(self._waiting)

    @property
    def running(self) -> Sequence[int]:
        """Admitted slots, in the order in which they are served."""
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
        self._wait(slot)

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
        if self._table.status[slot] != Status.NEW:
            raise _misuse("a request was given to the scheduler twice", f"slot {slot}")
        check_fits(slot, self._table, self._pools, self._tables, self._limits)

    # -- one step ----------------------------------------------------------------------------

    def schedule(self, most_steps: int = 1) -> StepPlan:
        """Choose the rows of the next step and take blocks for them.

        Args:
            most_steps: steps that may run before the host sees a token; more than one are planned where all that can
                run decodes, by rules that the device knows, and nothing is in flight.

        Returns:
            The plan.  An empty one is not to be run or committed; it means that there is no request, or that
            every one waits for a step in flight.

        Raises:
            AccountingError: ``max_in_flight`` steps are in flight already.
        """
        if len(self._in_flight) >= self._limits.max_in_flight:
            raise _misuse("a step was scheduled too early", f"{len(self._in_flight)} steps are in flight")
        step = StepDraft(self._limits.max_tokens_per_step, 1 + self._limits.draft_tokens)
        if self._running:
            slots = self._running_slots()
            decodes, chunks = self._books.rows_left(slots)
            self._take_decodes(step, slots[decodes])
            for slot in slots[chunks].tolist():
                if self._table.status[slot] == Status.RUNNING:
                    self._continue_chunk(step, slot)
        self._admit(step)
        plan = self._books.seal(step, self._turn(step, most_steps) if most_steps > 1 else 1)
        if len(plan):
            self._in_flight.append(plan)
        return plan

    def commit(self, plan: StepPlan, tokens: npt.ArrayLike, counts: npt.ArrayLike | None = None) -> Int32:
        """Settle the oldest step in flight.

        Args:
            plan: that step.
            tokens: int [n, m] or [n], the tokens emitted by each entry; entries that do not sample are ignored.
            counts: int [n], how many of them each entry emitted; None: one each.  A first token of -1 means that
                nothing could be drawn (the caller ends such a request).

        Returns:
            int32 [n], how many tokens were appended to each request: those emitted, up to its limit.  0 for requests
            that were cancelled, finished or put back since the step was scheduled.
        """
        if not self._in_flight or self._in_flight[0] is not plan:
            raise _misuse("a step was committed out of order", f"{len(self._in_flight)} steps are in flight")
        appended, live, lengths = self._books.settle(plan, tokens, counts)
        self._in_flight.popleft()
        self._space.commit(plan.slots[live], lengths[live])
        return appended

    def rollback(self, plan: StepPlan) -> None:
        """Take back the newest step in flight, which was not run; its blocks stay with their requests."""
        if not self._in_flight or self._in_flight[-1] is not plan:
            raise _misuse(
                "a step was rolled back out of order", f"{len(self._in_flight)} steps are in flight"
            )
        self._in_flight.pop()
        self._books.undo(plan)

    def abandon(self, plan: StepPlan) -> None:
        """Take back the newest step in flight, which failed after it may have written something.

        Paged entries are written again in place.  Rings keep only the newest positions: a chunk longer than their
        margin may have overwritten what its own first rows read.  Of requests that draw, tokens, lengths and drafts
        on the device are unsure.  From the first request of either kind on all are put back.
        """
        self.rollback(plan)
        overwrote = plan.num_rows > self._tables.window.geometry.rollback
        torn = set(plan.slots[overwrote | plan.sample].tolist())
        first = next((i for i, slot in enumerate(self._running) if slot in torn), len(self._running))
        for slot in reversed(self._running[first:]):
            self._put_back(slot)

    def _take_decodes(self, step: StepDraft, slots: Int32) -> None:
        slots = slots[: step.budget // step.each]
        if not self._space.grow_all(slots, self._books.decode_ends(slots)):
            slots = self._place_one_by_one(step, slots)
        step.set_decodes(slots)

    def _turn(self, step: StepDraft, most: int) -> int:
        """How many steps these entries can decode with what each draws from the one before alone; takes blocks."""
        slots, table = step.decodes, self._table
        if step.slots or not len(slots) or self._in_flight or self._limits.draft_tokens or table.ruled[slots].any():
            return 1
        left = int((table.limit[slots] - table.num_tokens[slots]).min())
        steps = min(most, left, self._tables.window.geometry.most_rows)
        return steps if self._space.grow_all(slots, table.num_computed[slots] + steps) else 1

    def _place_one_by_one(self, step: StepDraft, slots: Int32) -> Int32:
        """Give each decode row its blocks, in order, putting back the last requests as needed."""
        placed = []
        ends = self._books.decode_ends(slots)
        for slot, end in zip(slots.tolist(), ends.tolist(), strict=True):
            if self._table.status[slot] != Status.RUNNING:
                continue
            if self._make_room(step, slot, end - int(self._table.num_computed[slot])):
                self._space.grow(slot, end)
                placed.append(slot)
        return np.array(placed, dtype=np.int32)

    def _continue_chunk(self, step: StepDraft, slot: int) -> None:
        least = self._least_rows(slot, int(self._table.num_computed[slot]))
        if step.can_offer(least) and self._make_room(step, slot, least):
            self._place_chunk(step, slot, least, self._room(slot))

    def _admit(self, step: StepDraft) -> None:
        """Start waiting requests, in order, if running ones found all they needed."""
        while self._waiting and len(self._running) < self._limits.max_running:
            if step.preempted or step.short:
                return
            slot = self._waiting[0]
            # Room is left for running requests to grow by a block, or they would put this one back at once.
            running = self._running_slots()
            spare = self._space.growing(running, self._table.limit[running] - 1)
            if self._space.reach(slot, spare) < 1:
                return  # no cached prefix changes that, so none is looked up
            match = self._match(slot)
            start = 0 if match is None else match.start
            least = self._least_rows(slot, start)
            room = self._space.reach(slot, spare, match) - start
            if room < least or not step.can_offer(least):
                return
            del self._waiting[0]
            self._space.adopt(slot, match)
            self._table.num_computed[slot] = start
            step.started.append((slot, start, 0 if match is None else match.window_start))
            self._start(slot)
            self._place_chunk(step, slot, least, room)

    def _match(self, slot: int) -> Match | None:
        """What a waiting request can take from the prefix cache."""
        goal = int(self._books.goals(np.array([slot]))[0][0])
        identity, most = (PLAIN, goal) if self._identify is None else self._identify(slot)
        tokens = self._table.tokens[slot, : self._table.num_tokens[slot]]
        return self._space.match(tokens, identity, min(most, goal - 1))

    def _place_chunk(self, step: StepDraft, slot: int, least: int, room: int) -> None:
        step.displace(least)
        table = self._table
        start, goal = int(table.num_computed[slot]), int(self._books.goals(np.array([slot]))[0][0])
        most = min(goal - start, step.budget, room)
        rows = min(most, self._limits.max_chunk)
        if table.has_roles[slot]:
            rows = whole_spans(table.roles_array()[slot, start:goal], rows, most)
        self._space.grow(slot, start + rows)
        step.add_chunk(slot, rows)

    # -- room --------------------------------------------------------------------------------

    def _least_rows(self, slot: int, start: int) -> int:
        """The smallest chunk that can be run from a position: one row, or a whole image span."""
        if not self._table.has_roles[slot]:
            return 1
        end = int(self._table.prompt_len[slot])
        return max(1, leading_span(self._table.roles_array()[slot, start:end]))

    def _room(self, slot: int) -> int:
        """Rows that a slot could run with its blocks and all free ones."""
        return self._space.reach(slot) - int(self._table.num_computed[slot])

    def _make_room(self, step: StepDraft, slot: int, rows: int) -> bool:
        """Put back later requests until ``slot`` can run ``rows`` rows; False if that is not enough."""
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
        """Take the last running request off the device; it starts again later, with the same result."""
        self._stop(slot)
        self._table.num_computed[slot] = self._table.num_pending[slot] = self._table.num_drawing[slot] = 0
        self._table.epoch[slot] += 1
        self._table.preemptions[slot] += 1
        self._wait(slot)

    def _wait(self, slot: int) -> None:
        self._table.status[slot] = Status.WAITING
        insort(self._waiting, slot, key=self._table.key)

    def _start(self, slot: int) -> None:
        self._table.status[slot] = Status.RUNNING
        insort(self._running, slot, key=self._table.key)
        self._running_array = None

    def _running_slots(self) -> Int32:
        """int32 [n], as `running`."""
        if self._running_array is None:
            self._running_array = np.array(self._running, dtype=np.int32)
        return self._running_array

    def _stop(self, slot: int) -> None:
        """Leave the running list and give every block back."""
        self._running.remove(slot)
        self._running_array = None
        self._space.release(slot)


def _misuse(what: str, why: str) -> AccountingError:
    return AccountingError(
        what, where="Scheduler", why=why, fix="report this: the engine and the scheduler disagree"
    )

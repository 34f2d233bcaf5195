"""One random life of an engine that schedules ahead: the real scheduler and tables, a pretend device.

The loop is that of `tandem.engine.engine.Engine.step`: schedule, queue the forward part, deliver the step in flight,
queue the draw part.  Requests arrive, are cancelled, reach deadlines, end by tokens, by length and by stops that
are noticed late; pools are small, so that requests are put back; steps fail.  The clock is virtual, and what
takes how long is random, so a seed is a schedule.

Checked: every row of every step reads what the request's own tokens left there (`pipeline_device`); outputs
are those of a request that runs alone; only committed tokens are seen; each request is in one list; blocks are
owned as often as they are named; bounds of a step; whoever can run does; all end.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
from support.pipeline_device import EOS, GRAM, VOCAB, Chain, Clock, Device, DeviceFailure, Forwarded, Op

from tandem.cache.pool import BlockPool
from tandem.cache.prefix import PrefixCache, PrefixLimits
from tandem.cache.space import Pools, Tables
from tandem.cache.tables import EMPTY, BlockTable, WindowGeometry, WindowTable
from tandem.engine.draws import DrawBuilder, Draws
from tandem.engine.ends import TokenEnds
from tandem.engine.plan import SchedulerLimits, StepPlan
from tandem.engine.request_state import Sampling
from tandem.engine.requests import RequestTable, Status
from tandem.engine.scheduler import Scheduler
from tandem.engine.step import HostStep, StepBuilder
from tandem.model.replay import Replay

_NOTHING = np.empty(0, dtype=np.int32)


class Pool(BlockPool):
    """A pool that remembers which blocks became free."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.freed: list[int] = []

    def release(self, ids: np.typing.ArrayLike) -> np.ndarray:
        freed = super().release(ids)
        self.freed += freed.tolist()
        return freed


class HostSide(StepBuilder):
    """The host's half of a step builder; the arrays of the device are names."""

    def __init__(self, table: RequestTable, tables: Tables, ring: int, drafts: int) -> None:
        self._table, self._tables, self._ring = table, tables, ring
        self._ratios, self._block_size = [1], tables.main.block_size
        self.last_token, self.length, self.limit, self.window_first = "last_token", "length", "limit", "window_first"
        self.window_first_upper, self.replay = None, Replay()
        self.drafts = SimpleNamespace(count=drafts, tokens="drafts") if drafts else None
        self._sets, self._resumed = [], []


@dataclass(eq=False)
class Job:
    """A request of the simulation."""

    prompt: list[int]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    priority: int
    arrives: float
    cancel_at: float  # deadlines are the same to a scheduler
    stop_after: int  # tokens after which a late stop ends it
    chain: Chain = field(init=False)
    slot: int = -1
    given: list[int] = field(default_factory=list)
    stop_seen: float | None = None
    ended: str = ""

    def __post_init__(self) -> None:
        self.chain = Chain(self.prompt)

    def alone(self) -> list[int]:
        """Its output in an engine of its own, one step at a time."""
        output: list[int] = []
        while len(output) < self.max_tokens:
            output.append(self.chain[len(self.prompt) + len(output)])
            if output[-1] == EOS and not self.ignore_eos and len(output) >= self.min_tokens:
                break
        return output


@dataclass(eq=False)
class Flight:
    """A step under way."""

    plan: StepPlan
    host: HostStep
    forward: Op
    draws: Draws | None = None
    drawn: Op | None = None


class Life:
    """A seed's engine, requests and device; `run` lives it to the end."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.drafts = rng.choice((0, 1, 2, 3))
        self.depth = rng.choice((1, 2, 2, 2))
        slots, block, page, window = rng.randint(1, 4), rng.choice((2, 4)), rng.choice((1, 2)), rng.choice((2, 3, 5))
        self.longest = rng.choice((4, 6, 8, 12))
        self.budget = max(slots, rng.randint(self.drafts + 1, 12))
        geometry = WindowGeometry(window, page, self.budget, self.drafts, self.depth)
        least = -(-self.longest // block)
        blocks = least + rng.choice((0, 0, 1, 2, least * slots))
        pages = geometry.pages(1 + self.drafts)
        pages = rng.choice((pages, pages + rng.randint(0, 3), geometry.pool_blocks(slots, self.budget)))
        self.table = RequestTable(slots, self.longest)
        self.pools = Pools(Pool(blocks), Pool(pages))
        self.tables = Tables(BlockTable(slots, self.longest, block), WindowTable(slots, geometry))
        self.prefix = None
        if rng.random() < 0.5:
            limits = PrefixLimits(rng.choice((None, 2)), rng.choice((None, 4)))
            self.prefix = PrefixCache(self.pools, self.tables, self.table.tokens, b"model", limits)
        self.limits = SchedulerLimits(
            self.budget, rng.randint(min(2, self.budget), self.budget), rng.randint(1, slots), self.depth, self.drafts
        )
        choose = self.choose if rng.random() < 0.7 else None
        self.scheduler = Scheduler(self.table, self.pools, self.tables, self.limits, choose, self.prefix)
        ring = GRAM + geometry.rollback
        self.builder = HostSide(self.table, self.tables, ring, self.drafts)
        columns = (self.tables.main.columns, self.tables.window.columns)
        right = rng.choice((0.0, 0.5, 0.9, 1.0))
        self.device = Device(slots, self.drafts, block, window, page, blocks, pages, ring, right, columns)
        self.drawer, self.ends = DrawBuilder(self.table, None, 1), TokenEnds(self.table, EOS)
        self.clock, self.flights = Clock(rng), deque[Flight]()
        self.live: dict[int, Job] = {}
        self.jobs = sorted((self.job() for _ in range(rng.choice((1, 2, 2, 3, 5)))), key=lambda job: job.arrives)
        self.pending = deque(self.jobs)
        self.failures = rng.choice((0, 0, 0, 0, 0, 1, 2))
        self.steps = self.preemptions = self.accepted = self.failed = 0

    def job(self) -> Job:
        rng = self.rng
        length = rng.randint(1, self.longest // 2)
        start = rng.randrange(2)  # few different beginnings, so that prefixes are shared
        prompt = [1 + (start * 7 + p * 3) % (VOCAB - 1) for p in range(length)]
        if rng.random() < 0.4:
            prompt[-1] = rng.randrange(1, VOCAB)
        most = self.longest - length if rng.random() < 0.5 else rng.randint(1, self.longest - length)
        never = float("inf")
        return Job(
            prompt,
            most,
            rng.randint(0, most) if rng.random() < 0.2 else 0,
            rng.random() < 0.5,
            rng.randrange(2),
            rng.random() * rng.choice((0.0, 0.0, 10.0)),
            rng.random() * 20.0 if rng.random() < 0.2 else never,
            rng.randint(1, most) if rng.random() < 0.25 else most + 1,
        )

    def choose(self, slots: np.ndarray, other: int) -> int:
        assert len(set(slots.tolist())) == len(slots) and other >= 0
        return self.rng.randint(len(slots), len(slots) * (1 + self.drafts))

    # -- the engine's loop -------------------------------------------------------------------

    def run(self) -> None:
        """Live; raises where anything is wrong."""
        clock, rng = self.clock, self.rng
        idle = 0
        while self.pending or self.live or self.flights:
            self.steps += 1
            assert self.steps < 600, "requests do not come to an end"
            clock.spend(rng.random())
            self.admit()
            self.cancel_some()
            plan = self.scheduler.schedule()
            self.check_plan(plan)
            # Who can run does: with nothing in flight somebody always can.
            assert len(plan) or self.flights or not self.live
            idle = 0 if len(plan) or self.flights else idle + 1
            if idle and self.pending:
                clock.spend(max(0.0, self.pending[0].arrives - clock.now))
            try:
                self.advance(plan)
            except DeviceFailure:
                self.failed += 1
            self.see_stops()
            if rng.random() < 0.05:
                self.check_books()
        self.check_end()

    def admit(self) -> None:
        while self.pending and self.pending[0].arrives <= self.clock.now and self.table.num_free:
            job = self.pending.popleft()
            sampling = Sampling(
                job.max_tokens, job.min_tokens, ignore_eos=job.ignore_eos, priority=job.priority
            )
            job.slot = self.table.create(np.array(job.prompt), sampling)
            self.scheduler.add(job.slot)
            self.builder.admit(job.slot)
            self.live[job.slot] = job

    def cancel_some(self) -> None:
        for job in [job for job in self.live.values() if job.cancel_at <= self.clock.now]:
            self.end(job, "cancelled")

    def see_stops(self) -> None:
        """Stops that another thread found end their requests when it has said so."""
        for job in [j for j in self.live.values() if j.stop_seen is not None and j.stop_seen <= self.clock.now]:
            self.end(job, "late stop")

    def end(self, job: Job, how: str) -> None:
        (self.scheduler.cancel if how in ("cancelled", "late stop") else self.scheduler.finish)(job.slot)
        del self.live[job.slot]
        job.ended = how

    def advance(self, plan: StepPlan) -> None:
        flight = None
        try:
            if len(plan):
                flight = self.forward(plan)
                self.flights.append(flight)
            if self.depth == 1 and flight is not None:
                self.draw(flight)
                self.deliver(flight)
                self.flights.popleft()
                return
            if len(self.flights) > (flight is not None):
                self.deliver(self.flights[0])
                self.flights.popleft()
            if flight is not None:
                self.draw(flight)
        except DeviceFailure:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Take back every step in flight."""
        while self.flights:
            flight = self.flights.pop()
            self.clock.wait(flight.drawn or flight.forward)
            self.builder.unbuilt(flight.host)
            self.scheduler.abandon(flight.plan)
        self.clock.failed = None

    def failure(self) -> float | None:
        if not self.failures or self.rng.random() > 0.15:
            return None
        self.failures -= 1
        return self.rng.random()

    def forward(self, plan: StepPlan) -> Flight:
        freed = [pool.freed for pool in self.pools]
        for pool in self.pools:
            pool.freed = []
        if freed[0] or freed[1]:
            self.clock.submit(lambda: self.device.poison(*freed), 0.0, always=True)
        host = self.builder.prepare(plan)
        chains = {slot: self.live[slot].chain for slot in plan.slots.tolist()}
        spec, rows, fail = plan.slots[: plan.speculative].tolist(), plan.draft_rows, self.failure()
        op = self.clock.submit(lambda: self.device.forward(host, spec, rows, chains, fail), 2.0)
        self.clock.spend(self.rng.random() * 0.2)
        return Flight(plan, host, op)

    def draw(self, flight: Flight) -> None:
        plan = flight.plan
        step: Forwarded | None = None
        if plan.speculative:
            step = self.clock.result(flight.forward)
        counts = None if step is None else np.array(step.counts, dtype=np.int32)
        draws = flight.draws = self.drawer.build(plan, counts, {})
        if draws is None:
            return
        chains = {slot: self.live[slot].chain for slot in draws.slots.tolist()}
        fail = self.failure()
        flight.drawn = self.clock.submit(lambda: self.device.draw(flight.forward.value, draws, chains, fail), 1.0)

    def deliver(self, flight: Flight) -> None:
        plan, draws, table = flight.plan, flight.draws, self.table
        self.clock.result(flight.forward)
        if draws is None or flight.drawn is None:
            self.scheduler.commit(plan, np.full(len(plan), -1, dtype=np.int32))
            return
        drawn = self.clock.result(flight.drawn)
        self.accepted += drawn.accepted
        tokens = draws.table(np.array(drawn.tokens, dtype=np.int32))
        counts, slots = np.array(drawn.emitted, dtype=np.int32), draws.slots
        alive = (table.epoch[slots] == plan.epochs[draws.entries]) & ~draws.known
        kept, reasons = self.ends.cut(slots, tokens, np.where(alive, counts, 0))
        full = np.full((len(plan), tokens.shape[1]), -1, dtype=np.int32)
        full[draws.entries] = tokens
        given = np.zeros(len(plan), dtype=np.int32)
        given[draws.entries] = kept
        appended = self.scheduler.commit(plan, full, given)
        assert (appended[draws.entries] == kept).all()
        for place in np.flatnonzero(alive).tolist():
            self.take(self.live[int(slots[place])], tokens[place, : kept[place]].tolist(), int(reasons[place]))

    def take(self, job: Job, tokens: list[int], reason: int) -> None:
        job.given += tokens
        start = len(job.prompt)
        assert job.given == job.chain.tokens[start : start + len(job.given)], "an output differs from the chain"
        known = self.table.tokens[job.slot, : self.table.num_tokens[job.slot]].tolist()
        assert known == job.prompt + job.given, "the table holds other tokens than were given"
        if reason:
            assert job.given == job.alone()
            self.end(job, "finished")
        elif len(job.given) >= job.stop_after and job.stop_seen is None:
            job.stop_seen = self.clock.now + self.rng.random() * 3.0

    # -- checks ------------------------------------------------------------------------------

    def check_plan(self, plan: StepPlan) -> None:
        slots, table = plan.slots.tolist(), self.table
        self.preemptions += len(plan.preempted)
        assert len(set(slots)) == len(slots) and plan.total_rows <= self.budget
        each = plan.num_rows[: plan.speculative]
        assert plan.speculative <= plan.draft_rows <= int(each.sum()) if plan.speculative else not plan.draft_rows
        for i, slot in enumerate(slots):
            assert table.status[slot] == Status.RUNNING and slot in self.live
            if i >= plan.speculative:
                assert plan.ends[i] < table.limit[slot] and plan.num_rows[i] <= max(1, self.limits.max_chunk)
        if slots and self.scheduler.running:
            first = self.scheduler.running[0]
            left = int(table.num_tokens[first] + table.num_drawing[first]) < int(table.limit[first])
            # The first in order moves unless its rows are under way, or a step has room for one entry only.
            assert first in slots or not left or self.in_flight(first) or self.budget == 1 + self.drafts

    def in_flight(self, slot: int) -> bool:
        return any(slot in flight.plan.slots for flight in self.flights)

    def check_books(self) -> None:
        """Each request in one list; blocks owned as often as tables and cache name them."""
        scheduler, table = self.scheduler, self.table
        assert sorted([*scheduler.running, *scheduler.waiting]) == sorted(self.live)
        for queue in (scheduler.running, scheduler.waiting):
            keys = [table.key(slot) for slot in queue]
            assert keys == sorted(keys)
        assert len(scheduler.running) <= self.limits.max_running and scheduler.in_flight == len(self.flights)
        for pool, mirror in zip(self.pools, self.tables, strict=True):
            named = np.bincount(mirror.table[mirror.table != EMPTY], minlength=pool.num_blocks)
            named[pool.kept] += 1
            assert (named == pool.ref_counts).all()
            assert pool.num_free == int((pool.ref_counts == 0).sum())
        for slot in range(table.max_slots):
            if slot not in scheduler.running:
                assert self.tables.main.count[slot] == 0
                assert table.status[slot] == (Status.WAITING if slot in self.live else Status.FREE)
            if slot in self.live:
                pending, drawing = int(table.num_pending[slot]), int(table.num_drawing[slot])
                assert 0 <= drawing <= min(pending, self.depth) and pending <= self.depth * (1 + self.drafts)
        if self.prefix is not None:
            self.prefix.check()

    def check_end(self) -> None:
        """All requests ended as they should, and everything was given back."""
        for job in self.jobs:
            assert job.ended
            whole = job.alone()
            assert job.given == (whole if job.ended == "finished" else whole[: len(job.given)])
        self.check_books()
        self.clock.spend(1e9)
        assert self.table.num_free == self.table.max_slots and self.scheduler.idle
        for pool in self.pools:
            assert pool.num_free + len(pool.kept) == pool.num_blocks
        if self.prefix is not None:
            self.check_cache()

    def check_cache(self) -> None:
        """What is cached is what it is named after."""
        size = self.tables.main.block_size
        for node in self.prefix._tree:
            depth, parent = 0, node.parent
            while parent is not None:
                depth, parent = depth + 1, parent.parent
            expected = [(depth * size + i) * VOCAB + t for i, t in enumerate(node.tokens.tolist())]
            assert self.device.main[node.block * size : (node.block + 1) * size] == expected

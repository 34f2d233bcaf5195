"""A small engine without a model, for tests of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tandem.cache.pool import BlockPool
from tandem.cache.space import Pools, Tables
from tandem.cache.tables import BlockTable, WindowGeometry, WindowTable
from tandem.engine.plan import SchedulerLimits, StepPlan
from tandem.engine.request_state import Sampling
from tandem.engine.requests import RequestTable
from tandem.engine.scheduler import Scheduler


@dataclass(frozen=True)
class Shape:
    """Sizes of a small engine."""

    slots: int = 4
    max_len: int = 40
    block: int = 4
    main_blocks: int = 40
    window: int = 4
    window_block: int = 2
    window_blocks: int = 80
    budget: int = 16
    chunk: int = 8
    depth: int = 1
    draft: int = 0
    running: int = 4
    turn: int = 1


@dataclass
class Engine:
    """The parts around a scheduler."""

    shape: Shape
    table: RequestTable = field(init=False)
    pools: Pools = field(init=False)
    tables: Tables = field(init=False)
    scheduler: Scheduler = field(init=False)

    def __post_init__(self) -> None:
        s = self.shape
        geometry = WindowGeometry(s.window, s.window_block, s.budget, s.draft, s.depth)
        self.table = RequestTable(s.slots, s.max_len)
        self.pools = Pools(BlockPool(s.main_blocks), BlockPool(s.window_blocks))
        self.tables = Tables(BlockTable(s.slots, s.max_len, s.block), WindowTable(s.slots, geometry))
        limits = SchedulerLimits(s.budget, s.chunk, s.running, s.depth)
        self.scheduler = Scheduler(self.table, self.pools, self.tables, limits)

    def add(self, length: int, max_tokens: int, **more) -> int:
        slot = self.table.create(np.arange(1, length + 1), Sampling(max_tokens=max_tokens), **more)
        self.scheduler.add(slot)
        return slot

    def step(self, token: int = 7) -> dict[int, tuple[int, int, bool]]:
        """Schedule and commit one step; {slot: (start, rows, sample)}."""
        plan = self.scheduler.schedule()
        if len(plan):
            self.scheduler.commit(plan, np.full(len(plan), token))
        return entries(plan)


def entries(plan: StepPlan) -> dict[int, tuple[int, int, bool]]:
    rows = zip(
        plan.slots.tolist(), plan.starts.tolist(), plan.num_rows.tolist(), plan.sample.tolist(), strict=True
    )
    return {slot: (start, count, sample) for slot, start, count, sample in rows}

"""Random schedules against a pretend device.

The pretend device keeps what a real one would: caches addressed by block, and copies of the tables that see
only the rows reported as changed.  Each row writes its identity into both caches and then checks that every
position it may read holds what an undisturbed run would have left there.  Requests arrive, end, are
cancelled, adopted and put back at random, on pools that are mostly full; each must draw the tokens that it draws
alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from unit.scheduler_world import Engine, Shape

from tandem.cache.tables import EMPTY
from tandem.engine.plan import StepPlan
from tandem.engine.request_state import Sampling
from tandem.engine.requests import Status
from tandem.errors import CapacityError, RequestError

EOS = 0


def drawn_token(uid: int, position: int) -> int:
    """What a request draws at a position: a stand-in for the model; EOS now and then."""
    value = (uid * 7919 + position * 104729) % 1009
    return EOS if value < 25 else value


def expected_output(uid: int, prompt_len: int, max_tokens: int) -> list[int]:
    output: list[int] = []
    while len(output) < max_tokens and EOS not in output:
        output.append(drawn_token(uid, prompt_len + len(output)))
    return output


class Device:
    """Caches that remember who wrote what, and tables as last uploaded."""

    def __init__(self, engine: Engine) -> None:
        s = engine.shape
        self.engine = engine
        self.main = np.full(s.main_blocks * s.block, -1, dtype=np.int64)
        self.window = np.full(s.window_blocks * s.window_block, -1, dtype=np.int64)
        self.block_table = np.full_like(engine.tables.main.table, EMPTY)
        self.window_table = np.full_like(engine.tables.window.table, EMPTY)

    def upload(self) -> None:
        main, window = self.engine.tables
        for mine, mirror in ((self.block_table, main), (self.window_table, window)):
            changed, values = mirror.take_changed()
            mine.reshape(-1)[changed] = values
            assert (mine == mirror.table).all()

    def main_slots(self, slot: int, positions: np.ndarray) -> np.ndarray:
        block = self.engine.shape.block
        blocks = self.block_table[slot, positions // block]
        assert (blocks >= 0).all()
        return blocks * block + positions % block

    def window_slots(self, slot: int, positions: np.ndarray) -> np.ndarray:
        block = self.engine.shape.window_block
        pages = self.window_table[slot, positions // block % self.window_table.shape[1]]
        assert (pages >= 0).all()
        return pages * block + positions % block

    def write(self, slot: int, uid: int, start: int, end: int, window_start: int) -> None:
        rows, late = np.arange(start, end), np.arange(window_start, end)
        self.main[self.main_slots(slot, rows)] = uid * 1000 + rows
        self.window[self.window_slots(slot, late)] = uid * 1000 + late

    def check_readable(self, slot: int, uid: int, end: int, window_start: int) -> None:
        rows, late = np.arange(end), np.arange(window_start, end)
        assert (self.main[self.main_slots(slot, rows)] == uid * 1000 + rows).all()
        assert (self.window[self.window_slots(slot, late)] == uid * 1000 + late).all()


@dataclass(eq=False)
class Live:
    """What the test knows of a request, apart from the scheduler."""

    uid: int
    prompt_len: int
    max_tokens: int
    roles: np.ndarray
    next_row: int = 0
    committed: int = 0


class Episode:
    """One random life of an engine; every step is checked."""

    def __init__(self, seed: int, shape: Shape, requests: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.shape = shape
        self.engine = Engine(shape)
        self.device = Device(self.engine)
        self.live: dict[int, Live] = {}
        self.flying: list[tuple[StepPlan, list[Live]]] = []
        self.to_come, self.uid = requests, 0
        self.finished = self.preemptions = self.steps = self.full = self.turns = 0

    def run(self) -> None:
        scheduler = self.engine.scheduler
        while self.to_come or self.live:
            self.steps += 1
            assert self.steps < 4000, "requests do not come to an end"
            self.arrive()
            if self.rng.random() < 0.03 and self.live:
                self.cancel(int(self.rng.choice(list(self.live))))
            while scheduler.in_flight < self.shape.depth:
                if not self.launch():
                    break
            if self.flying and (self.rng.random() < 0.7 or scheduler.in_flight == self.shape.depth):
                self.settle()
        while self.flying:
            self.settle()
        assert self.engine.pools.main.num_free == self.shape.main_blocks
        assert self.engine.pools.window.num_free == self.shape.window_blocks
        assert scheduler.idle and self.engine.table.num_free == self.shape.slots

    def arrive(self) -> None:
        table = self.engine.table
        while self.to_come and table.num_free and self.rng.random() < 0.5:
            self.to_come -= 1
            self.uid += 1
            longest = min(self.shape.max_len, self.shape.main_blocks * self.shape.block)
            prompt_len = int(self.rng.integers(1, longest))
            max_tokens = int(self.rng.integers(1, longest - prompt_len + 1))
            roles = np.zeros(prompt_len, dtype=np.uint8)
            if self.rng.random() < 0.3:
                start, length = (
                    int(self.rng.integers(prompt_len)),
                    int(self.rng.integers(1, self.shape.budget + 4)),
                )
                roles[start : start + length] = 1
            slot = table.create(self.rng.integers(1, 1000, prompt_len), Sampling(max_tokens=max_tokens), roles=roles)
            live = Live(self.uid, prompt_len, max_tokens, roles)
            try:
                if self.rng.random() < 0.2 and prompt_len > 1 and not roles.any():
                    self.adopt_or_add(slot, live)
                else:
                    self.engine.scheduler.add(slot)
            except (RequestError, CapacityError):
                span = int(roles.sum())
                geometry = self.engine.tables.window.geometry
                assert span > self.shape.budget or geometry.pages(span) > self.shape.window_blocks
                table.free(slot)
                continue
            self.live[slot] = live

    def adopt_or_add(self, slot: int, live: Live) -> None:
        computed = int(self.rng.integers(1, live.prompt_len))
        if not self.engine.scheduler.adopt(slot, computed):
            self.engine.scheduler.add(slot)
            return
        live.next_row = live.committed = computed
        self.device.upload()
        geometry = self.engine.tables.window.geometry
        self.device.write(slot, live.uid, 0, computed, max(0, computed - geometry.window - geometry.rollback))

    def cancel(self, slot: int) -> None:
        self.engine.scheduler.cancel(slot)
        del self.live[slot]

    def launch(self) -> bool:
        """Schedule a step and run it on the device; False if there is nothing to run."""
        plan = self.schedule()
        if len(plan) and self.rng.random() < 0.05:
            self.put_back(plan)
            self.engine.scheduler.rollback(plan)
            plan = self.schedule()
        self.put_back(plan)
        self.check_books()
        self.check_plan(plan)
        if not len(plan):
            # Somebody can always run when nothing is in flight.
            assert self.flying or not self.live
            return False
        self.full += not self.engine.pools.main.num_free
        self.device.upload()
        self.execute(plan)
        self.flying.append((plan, [self.live[slot] for slot in plan.slots.tolist()]))
        return True

    def schedule(self) -> StepPlan:
        most = int(self.rng.integers(1, self.shape.turn + 1)) if self.shape.turn > 1 else 1
        plan = self.engine.scheduler.schedule(most)
        assert plan.steps == 1 or 1 < plan.steps <= most and not self.flying and (plan.num_rows == 1).all()
        self.turns += plan.steps > 1
        return plan

    def put_back(self, plan: StepPlan) -> None:
        self.preemptions += len(plan.preempted)
        for slot in plan.preempted:
            self.live[slot].next_row = self.live[slot].committed = 0

    def check_plan(self, plan: StepPlan) -> None:
        shape = self.shape
        slots = plan.slots.tolist()
        assert plan.total_rows <= shape.budget and len(set(slots)) == len(slots)
        for slot, start, rows, end in zip(slots, plan.starts, plan.num_rows, plan.ends, strict=True):
            live = self.live[slot]
            assert start == live.next_row and rows >= 1
            padded = np.concatenate([live.roles, np.zeros(shape.max_len + 1, dtype=np.uint8)])
            assert not (start and padded[start - 1] and padded[start]) and not (padded[end - 1] and padded[end])
            assert rows <= shape.chunk or padded[start:end].all()
            # The last token is never computed.
            assert end + plan.steps - 1 < live.prompt_len + live.max_tokens

    def execute(self, plan: StepPlan) -> None:
        geometry, table = self.engine.tables.window.geometry, self.engine.table
        for i, slot in enumerate(plan.slots.tolist()):
            live, start, end = self.live[slot], int(plan.starts[i]), int(plan.ends[i])
            lowest = min(start, live.committed - geometry.rollback) - geometry.window + 1
            self.device.write(slot, live.uid, start, end, start)
            self.device.check_readable(slot, live.uid, end, max(0, lowest))
            for row in range(end, end + plan.steps - 1):  # by what the device knows then, tables included
                self.device.write(slot, live.uid, row, row + 1, row)
                self.device.check_readable(slot, live.uid, row + 1, max(0, lowest))
            known, drawing = int(table.num_tokens[slot]), self.being_drawn(slot, int(plan.epochs[i]))
            assert plan.sample[i] == (end == known + drawing) and plan.from_device[i] == (end > known)
            live.next_row = end + plan.steps - 1

    def being_drawn(self, slot: int, epoch: int) -> int:
        """Tokens that steps in flight draw for a request since it was last put back."""
        return sum(int((plan.sample & (plan.slots == slot) & (plan.epochs == epoch)).sum()) for plan, _ in self.flying)

    def settle(self) -> None:
        """Commit the oldest step; end what has come to its end; now and then take rows back."""
        plan, lives = self.flying.pop(0)
        table, scheduler = self.engine.table, self.engine.scheduler
        tokens = np.array(
            [
                [drawn_token(live.uid, int(end) + step) for step in range(plan.steps)]
                for live, end in zip(lives, plan.ends, strict=True)
            ]
        )
        # Up to its first end token, as the engine cuts them.
        kept = np.where((tokens == EOS).any(axis=1), (tokens == EOS).argmax(axis=1) + 1, plan.steps)
        current = [self.live.get(slot) is live for slot, live in zip(plan.slots.tolist(), lives, strict=True)]
        valid = np.array(current) & (table.epoch[plan.slots] == plan.epochs)
        appended = scheduler.commit(plan, tokens, kept)
        assert (appended == (valid & plan.sample) * kept).all()
        for i, slot in enumerate(plan.slots.tolist()):
            if valid[i]:
                lives[i].committed = int(plan.ends[i]) + (int(kept[i]) - 1 if plan.steps > 1 else 0)
            if not appended[i]:
                continue
            output = table.output(slot).tolist()
            live = lives[i]
            if len(output) == live.max_tokens or output[-1] == EOS:
                assert output == expected_output(live.uid, live.prompt_len, live.max_tokens)
                scheduler.finish(slot)
                del self.live[slot]
                self.finished += 1

    def check_books(self) -> None:
        """Blocks are owned as often as tables name them; a slot is in one queue; queues are by arrival."""
        table, scheduler = self.engine.table, self.engine.scheduler
        main, window = self.engine.tables
        for pool, mirror in ((self.engine.pools.main, main), (self.engine.pools.window, window)):
            named = mirror.table[mirror.table != EMPTY]
            assert (np.bincount(named, minlength=pool.num_blocks) == pool.ref_counts).all()
            assert pool.num_free == int((pool.ref_counts == 0).sum())
        queued = [*scheduler.running, *scheduler.waiting]
        assert sorted(queued) == sorted(self.live)
        arrivals = table.arrival[queued]
        assert (np.diff(arrivals) > 0).all()
        for slot in range(self.shape.slots):
            if slot in scheduler.running:
                assert table.status[slot] == Status.RUNNING
            else:
                assert main.count[slot] == 0 and (window.table[slot] == EMPTY).all()
                assert table.status[slot] == (Status.WAITING if slot in self.live else Status.FREE)
        assert len(scheduler.running) <= self.shape.running


SHAPES = {
    "roomy": Shape(window_blocks=28),
    "full pool": Shape(slots=6, running=6, main_blocks=10, window_blocks=60),
    "one request fits": Shape(main_blocks=10, max_len=40),
    "window pool is the limit": Shape(window_blocks=9),
    "window pool serves one": Shape(window_blocks=4, budget=5, chunk=3),
    "small budget": Shape(slots=6, running=6, budget=3, chunk=2, main_blocks=12),
    "one step ahead, roomy": Shape(depth=2, window_blocks=36),
    "one step ahead, full pools": Shape(depth=2, slots=6, running=5, main_blocks=11, window_blocks=14),
    "odd sizes": Shape(slots=7, running=3, block=6, window=5, window_block=3, main_blocks=8, budget=11, chunk=7),
    "turns, roomy": Shape(window_blocks=40, turn=6),
    "turns, full pool": Shape(slots=6, running=6, main_blocks=10, window_blocks=60, turn=4),
    "turns, window pool is the limit": Shape(window_blocks=9, turn=5),
    "three steps ahead": Shape(depth=3, main_blocks=12, window_blocks=40),
}


@pytest.mark.parametrize("name", SHAPES)
def test_random_schedules_keep_every_promise(name):
    shape, total = SHAPES[name], [0, 0, 0, 0, 0]
    for seed in range(12):
        episode = Episode(seed, shape, requests=14)
        episode.run()
        counts = (episode.steps, episode.finished, episode.preemptions, episode.full, episode.turns)
        total = [a + b for a, b in zip(total, counts, strict=True)]
    steps, finished, preemptions, full, turns = total
    assert finished > 60 and steps > (200 if turns else 300)
    assert (turns > 40) == (shape.turn > 1)
    if "roomy" in name:
        assert preemptions == 0  # main blocks for all, window blocks as WindowGeometry.pool_blocks says
    if shape.main_blocks < 13:
        assert preemptions > 5 and full > 20, "the pool was meant to run full"

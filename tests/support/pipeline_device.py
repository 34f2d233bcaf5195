"""A pretend device with a queue, for simulating an engine that schedules ahead of it.

What is queued runs later, in order, at the time a virtual clock says; so a host that changes what a queued step
still reads, or frees what it still writes, is caught.  The memory is that of a real device: caches addressed by
block through copies of the tables, and arrays by request slot.  The steps have the semantics of the ops
`aux.verify_rows`, `aux.step_inputs`, `aux.accept` and `aux.draft_commit`, in plain Python.

The model is the *chain* of a request: the next token is a hash of all tokens before it, so a wrong, doubled or
missing token would change every later one.  Each cell of a cache holds (position, token); each row reads every cell
that a real one would and compares it with the chain.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tandem.engine.draws import Draws
from tandem.engine.step import HostStep

VOCAB = 64
EOS = 0
GRAM = 2  # earlier tokens that a row's n-gram hash reads
POISON = -7


class DeviceFailure(Exception):
    """A step failed on the device."""


class Chain:
    """All tokens that would follow a prompt, as far as they were asked for."""

    def __init__(self, prompt: list[int]) -> None:
        self.tokens = list(prompt)

    def __getitem__(self, position: int) -> int:
        tokens = self.tokens
        while len(tokens) <= position:
            value = hash(tuple(tokens))
            value ^= value >> 29
            tokens.append(EOS if value % 13 == 0 else 1 + (value >> 5) % (VOCAB - 1))
        return tokens[position]


@dataclass(eq=False)
class Op:
    """One piece of queued work, which ends at a time of the virtual clock; its result or what it raised."""

    ready: float
    work: Callable[[], Any]
    always: bool = False  # runs behind one that failed, too
    value: Any = None
    error: Exception | None = None


class Clock:
    """Virtual time of one host and one device whose queue runs in order.

    Behind an op that failed nothing runs until the host has taken note (``failed`` is None again): its tables and
    tokens are not those that it was built for.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.now, self.free_at = rng, 0.0, 0.0
        self.failed: DeviceFailure | None = None
        self.queue: deque[Op] = deque()

    def submit(self, work: Callable[[], Any], longest: float, always: bool = False) -> Op:
        """Queue work that takes up to ``longest``."""
        self.free_at = max(self.now, self.free_at) + self.rng.random() * longest
        op = Op(self.free_at, work, always)
        self.queue.append(op)
        return op

    def spend(self, time: float) -> None:
        """The host works for a time; what the device finishes meanwhile is done."""
        self.now += time
        while self.queue and self.queue[0].ready <= self.now:
            self._run(self.queue.popleft())

    def result(self, op: Op) -> Any:
        """Wait for an op."""
        self.wait(op)
        if op.error is not None:
            raise op.error
        return op.value

    def wait(self, op: Op) -> None:
        """Wait until an op has ended, well or not."""
        self.now = max(self.now, op.ready)
        self.spend(0.0)

    def _run(self, op: Op) -> None:
        if self.failed is not None and not op.always:
            op.error = self.failed
            return
        try:
            op.value = op.work()
        except DeviceFailure as error:
            op.error = self.failed = error


@dataclass(eq=False)
class Forwarded:
    """Rows of a step after its forward part: slot, position and id of each, and the rows of each speculative entry."""

    slot: list[int]
    position: list[int]
    ids: list[int]
    counts: list[int]


@dataclass(eq=False)
class Drawn:
    """What a step drew, by segment: tokens of its rows, how many were emitted."""

    tokens: list[int]
    emitted: list[int]
    accepted: int = 0


@dataclass(eq=False)
class Device:
    """Arrays by slot, tables and caches; sizes as the engine's."""

    slots: int
    drafts: int
    block: int
    window: int
    page: int
    blocks: int
    pages: int
    ring: int
    right: float  # chance that a draft is right
    columns: tuple[int, int] = (0, 0)
    state: dict[str, list[Any]] = field(init=False)

    def __post_init__(self) -> None:
        scratch = self.slots + 1
        self.state = {name: [0] * scratch for name in ("length", "limit", "window_first")}
        self.state |= {"last_token": [-1] * scratch, "drafts": [[-1] * self.drafts for _ in range(scratch)]}
        self.rates = [[0.0] * self.drafts for _ in range(scratch)]
        self.block_table = [[-1] * self.columns[0] for _ in range(scratch)]
        self.window_table = [[-1] * self.columns[1] for _ in range(scratch)]
        self.main = [POISON] * (self.blocks * self.block)
        self.near = [POISON] * (self.pages * self.page)
        self.history = [[POISON] * self.ring for _ in range(scratch)]

    def poison(self, blocks: list[int], pages: list[int]) -> None:
        """Freed blocks hold nothing that anybody may read."""
        for b in blocks:
            self.main[b * self.block : (b + 1) * self.block] = [POISON] * self.block
        for p in pages:
            self.near[p * self.page : (p + 1) * self.page] = [POISON] * self.page

    # -- forward -----------------------------------------------------------------------------

    def forward(
        self, host: HostStep, spec: list[int], draft_rows: int, chains: dict[int, Chain], fail: float | None
    ) -> Forwarded:
        """Run the rows of a step; with ``fail`` only that share of them, then raise."""
        if fail is not None and fail < 0.3:
            raise DeviceFailure("before anything was written")
        self._take_tables(host)
        rows = {name: array.tolist() for name, array in host.rows.items()}
        counts = self._share(rows, spec, draft_rows) if spec else []
        found = Forwarded(*self._inputs(rows), counts)
        writers = None if host.writers is None else host.writers.tolist()
        total = len(found.slot) if fail is None else int(fail * len(found.slot))
        for i in range(total):
            self._write(found, i, True if writers is None or i < draft_rows else writers[i] >= 0)
        for resumed in host.resumed:
            self._remember(resumed)
        if fail is not None:
            raise DeviceFailure("half way through the rows")
        self._read(found, rows["chunk_start"], rows["chunk_end"], chains)
        return found

    def _take_tables(self, host: HostStep) -> None:
        for name, slot, value in host.sets:
            self.state[name][slot] = value.tolist()
        for mine, (entries, values) in ((self.block_table, host.blocks), (self.window_table, host.pages)):
            for entry, value in zip(entries.tolist(), values.tolist(), strict=True):
                mine[entry // len(mine[0])][entry % len(mine[0])] = value

    def _share(self, rows: dict[str, list[int]], spec: list[int], total: int) -> list[int]:
        """`aux.verify_rows`: fill the first rows of a step, by the rates of the newest drafts."""
        candidates = []
        for place, slot in enumerate(spec):
            lowest, length, limit = 2.0, self.state["length"][slot], self.state["limit"][slot]
            for j, draft in enumerate(self.state["drafts"][slot]):
                if draft < 0 or length + 1 + j >= limit - 1:
                    break
                lowest = min(lowest, self.rates[slot][j])
                candidates.append((-lowest, place, j))
        counts = [1] * len(spec)
        for _, place, _ in sorted(candidates)[: total - len(spec)]:
            counts[place] += 1
        row = 0
        for slot, count in zip(spec, counts, strict=True):
            for offset in range(count):
                rows["slot"][row], rows["positions"][row], rows["from_device"][row] = slot, offset, 1 + offset
                rows["chunk_start"][row], rows["chunk_end"][row] = row - offset, row - offset + count
                row += 1
        for left in range(row, total):
            rows["slot"][left], rows["chunk_start"][left], rows["chunk_end"][left] = -1, left, left + 1
        return counts

    def _inputs(self, rows: dict[str, list[int]]) -> tuple[list[int], list[int], list[int]]:
        """`aux.step_inputs`."""
        slot, position, ids = rows["slot"][:], rows["positions"][:], rows["ids"][:]
        state = self.state
        for i, source in enumerate(rows["from_device"]):
            at = slot[i]
            if source:
                position[i] += state["length"][at]
                ids[i] = state["last_token"][at] if source == 1 else state["drafts"][at][source - 2]
            if at < 0 or ids[i] < 0 or position[i] >= state["limit"][at]:
                slot[i], position[i], ids[i] = -1, 0, 0
        return slot, position, ids

    def _write(self, found: Forwarded, i: int, own: bool) -> None:
        slot, position = found.slot[i], found.position[i]
        if slot < 0:
            return
        value = position * VOCAB + found.ids[i]
        block = self.block_table[slot][position // self.block]
        page = self.window_table[slot][position // self.page % self.columns[1]]
        if block < 0 or page < 0:  # such a row writes nothing; it must be of a request that is complete
            late = position >= self.state["limit"][slot] - 1
            assert late, f"slot {slot} has no block for position {position}"
            return
        if own:
            self.main[block * self.block + position % self.block] = value
        self.near[page * self.page + position % self.page] = value

    def _remember(self, rows: dict[str, Any]) -> None:
        for slot, position, token in zip(
            rows["slot"].tolist(), rows["positions"].tolist(), rows["ids"].tolist(), strict=True
        ):
            self.history[slot][position % self.ring] = position * VOCAB + token

    def _read(self, found: Forwarded, starts: list[int], ends: list[int], chains: dict[int, Chain]) -> None:
        """Check what each request's rows read, then move the n-gram history on."""
        first = 0
        while first < len(found.slot):
            end = ends[first]
            slot = found.slot[first]
            if slot >= 0 and found.position[first] < self.state["limit"][slot] - 1:
                last = max(i for i in range(first, end) if found.slot[i] >= 0)
                self._check(slot, found, first, last, chains[slot])
            for i in range(first, end):
                if found.slot[i] >= 0:
                    cell = found.position[i] * VOCAB + found.ids[i]
                    self.history[found.slot[i]][found.position[i] % self.ring] = cell
            assert starts[first] == first
            first = end

    def _check(self, slot: int, found: Forwarded, first: int, last: int, chain: Chain) -> None:
        """The rows of one request: ids, all cells before and in them, and the history before them."""
        begin, size, page = found.position[first], self.block, self.page
        drafted = found.ids[first + 1 : last + 1] if last > first else []
        known = [p * VOCAB + chain[p] for p in range(begin + 1)]
        own = [(begin + 1 + j) * VOCAB + token for j, token in enumerate(drafted)]
        end = begin + 1 + len(drafted)
        table, cells = self.block_table[slot], self.main
        held: list[int] = []
        for b in table[: -(-end // size)]:
            held += cells[b * size : (b + 1) * size]
        assert held[:end] == known + own, (slot, begin, held[:end], known, own)
        low = max(0, begin - self.window + 1)
        assert self.state["window_first"][slot] <= low, "a window begins after what is read"
        pages, wide = self.window_table[slot], self.columns[1]
        near = [self.near[pages[p // page % wide] * page + p % page] for p in range(low, end)]
        assert near == held[low:end], (slot, begin, near, held[low:end])
        for p in range(max(0, begin - GRAM), begin):
            assert self.history[slot][p % self.ring] == known[p], "the n-gram history is wrong"

    # -- draw --------------------------------------------------------------------------------

    def draw(self, step: Forwarded, draws: Draws, chains: dict[int, Chain], fail: float | None) -> Drawn:
        """Draw tokens of a step, accept drafts and make new ones; with ``fail`` only for that share of the requests."""
        slots, counts, first = draws.slots.tolist(), draws.counts.tolist(), draws.first.tolist()
        rows, base, forced = draws.rows.tolist(), draws.base.tolist(), draws.inputs.forced.tolist()
        tokens, emitted, accepted = [-1] * len(rows), [], 0
        for i, slot in enumerate(slots):
            if fail is not None and i >= fail * len(slots):
                break
            chain, at, count = chains[slot], first[i], counts[i]
            for j in range(count):
                row = rows[at + j]
                assert step.slot[row] == slot and step.position[row] == base[i] + j, "a row of another draws"
            taken = 0
            for j in range(count):
                tokens[at + j] = chain[base[i] + 1 + j]
                assert forced[at + j] in (-1, tokens[at + j]), "a known token is not the one that was drawn"
                taken += 1
                if j == count - 1 or step.ids[rows[at + j + 1]] != tokens[at + j]:
                    break
            emitted.append(taken)
            accepted += taken - 1
            self.state["last_token"][slot] = tokens[at + taken - 1]
            self.state["length"][slot] = base[i] + taken
            self._propose(slot, base[i] + taken, chain)
        if fail is not None:
            raise DeviceFailure("half way through the draws")
        return Drawn(tokens, emitted, accepted)

    def _propose(self, slot: int, length: int, chain: Chain) -> None:
        """New drafts; as everything here they depend on nothing but the tokens."""
        rate, drafts, rates = 1.0, self.state["drafts"][slot] if self.drafts else [], self.rates[slot]
        seed = hash((length, chain[length], chain[length - 1]))
        for j in range(self.drafts):
            seed = hash((seed, j))
            chance = (seed & 0xFFFF) / 0x10000
            good = chain[length + 1 + j]
            wrong = -1 if seed & 0xF0000 == 0 else 1 + good % (VOCAB - 1)
            drafts[j] = good if chance < self.right else wrong
            rate *= ((seed >> 20) & 0xFF) / 0x100
            rates[j] = rate

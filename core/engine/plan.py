"""What a step consists of: its bounds, the finished plan, and the draft the scheduler works on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tandem.errors import ConfigError

Int32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of a step.

    Args:
        max_tokens_per_step: rows in a step.
        max_chunk: rows of one request in a step; an image span, which is never cut, may exceed it.
        max_running: requests that hold blocks at the same time.
        max_in_flight: steps scheduled and not yet committed.
        draft_tokens: most drafts of a request that a step verifies; 0 without speculation.
    """

    max_tokens_per_step: int
    max_chunk: int
    max_running: int
    max_in_flight: int = 1
    draft_tokens: int = 0

    def __post_init__(self) -> None:
        if min(self.max_tokens_per_step, self.max_chunk, self.max_running, self.max_in_flight) < 1:
            raise ConfigError(
                "a scheduler limit is too small",
                where="SchedulerLimits",
                why=f"every limit must be at least 1, got {self}",
                fix="raise it",
            )
        if self.draft_tokens < 0 or self.draft_tokens + 1 > self.max_tokens_per_step:
            raise ConfigError(
                "the drafts of a request do not fit into a step",
                where="SchedulerLimits",
                why=f"draft_tokens is {self.draft_tokens}, a step has {self.max_tokens_per_step} rows",
                fix="lower speculation.draft_tokens, or raise scheduler.max_tokens_per_step",
            )


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """The rows of one step.  Entry i is one request; its rows are contiguous, in the order of the entries.

    A plan may be a turn: several decode steps, one behind the other, before the host sees a token.  Then every entry
    decodes, and the arrays are those of the first step.

    The first `speculative` entries share `draft_rows` rows: each has one for its newest token, the rest go to the
    likeliest drafts, which only the device knows.  Tokens and positions of these rows come from the device too.

    Args:
        slots: int32 [n], distinct request slots.
        num_rows: int32 [n], rows of each, at least 1; of a speculative entry the most that it can get.
        starts: int32 [n], position of the first row; of a speculative entry the highest that it can be.
        sample: bool [n], whether the entry draws tokens.
        known: bool [n], whether the token it draws is known: the newest one of a request that was recomputed, emitted
            once more for its drafts.
        from_device: bool [n], whether the token of the last row is drawn by a step still in flight.
        epochs: int64 [n], the slots' epochs; results count only while they are unchanged.
        preempted: slots put back to make room, in that order.
        speculative: how many entries, at the start, take their rows from the device.
        draft_rows: rows of these entries together.
        started: (slot, first position to compute, lowest position whose window exists) of requests that start.
        steps: how many run.
    """

    slots: Int32
    num_rows: Int32
    starts: Int32
    sample: Bools
    known: Bools
    from_device: Bools
    epochs: npt.NDArray[np.int64]
    preempted: tuple[int, ...]
    speculative: int = 0
    draft_rows: int = 0
    started: tuple[tuple[int, int, int], ...] = ()
    steps: int = 1

    def __len__(self) -> int:
        """Entries; 0 when there is nothing to run."""
        return len(self.slots)

    @property
    def new(self) -> Bools:
        """bool [n], whether the entry draws tokens that are not known yet."""
        fresh: Bools = self.sample & ~self.known
        return fresh

    @property
    def most_tokens(self) -> Int32:
        """int32 [n], most tokens that each entry can add to its request."""
        most: Int32 = self.new.astype(np.int32) * np.int32(self.steps)
        most[: self.speculative] = self.num_rows[: self.speculative]
        return most

    @property
    def uncertain(self) -> slice:
        """Entries of which only the tokens that they emit tell how many of their rows count."""
        return slice(len(self) if self.steps > 1 else self.speculative)

    @property
    def total_rows(self) -> int:
        """Rows of a step."""
        return self.draft_rows + int(self.num_rows[self.speculative :].sum())

    @property
    def ends(self) -> Int32:
        """int32 [n], one past the position of the last row."""
        return self.starts + self.num_rows

    @property
    def row_ends(self) -> Int32:
        """int32 [n], one past the index of each entry's last row within the step; 0 for speculative entries."""
        ends: Int32 = np.zeros(len(self), dtype=np.int32)
        ends[self.speculative :] = self.draft_rows + np.cumsum(self.num_rows[self.speculative :], dtype=np.int32)
        return ends


@dataclass(slots=True)
class StepDraft:
    """A plan under construction: decode entries first, then chunks.

    Args:
        budget: rows still to give.
        each: rows of a decode entry.
        decodes: int32, slots of the decode entries.
        slots, rows: the chunks so far.
        short: whether a running request found no blocks.
        preempted: slots put back so far.
        started: as in `StepPlan`.
    """

    budget: int
    each: int = 1
    decodes: Int32 = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    slots: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    short: bool = False
    preempted: list[int] = field(default_factory=list)
    started: list[tuple[int, int, int]] = field(default_factory=list)

    def set_decodes(self, slots: Int32) -> None:
        """Give every one of these slots, int32 [n], its decode rows; there are none yet."""
        self.decodes = slots
        self.budget -= self.each * len(slots)

    def add_chunk(self, slot: int, rows: int) -> None:
        """Append a chunk."""
        self.slots.append(slot)
        self.rows.append(rows)
        self.budget -= rows

    def drop(self, slot: int) -> None:
        """Take the entry of a slot out again, if there is one."""
        if slot in self.slots:
            i = self.slots.index(slot)
            del self.slots[i]
            self.budget += self.rows.pop(i)
        else:
            self._keep(self.decodes[self.decodes != slot])

    def can_offer(self, rows: int) -> bool:
        """Whether a chunk of ``rows`` rows fits.  The first chunk of a step may displace decode rows."""
        return rows <= self.budget or not self.slots

    def displace(self, rows: int) -> None:
        """Drop the youngest decode rows until ``rows`` rows fit; they run in the next step."""
        if rows > self.budget:
            self._keep(self.decodes[: (self.budget - rows) // self.each])

    def _keep(self, decodes: Int32) -> None:
        self.budget += self.each * (len(self.decodes) - len(decodes))
        self.decodes = decodes

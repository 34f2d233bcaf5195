"""From a scheduler's plan to a step's device arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tandem.cache.space import Tables
from tandem.contract.backend import HostFuture
from tandem.contract.plan import Plan
from tandem.contract.types import Rows
from tandem.engine.plan import StepPlan
from tandem.engine.requests import RequestTable
from tandem.engine.resume import prefix_state
from tandem.engine.step_rows import RowBuffers, following_rows, host_rows, padded
from tandem.model.replay import HostKept, Replay
from tandem.model.step import KeptRows, StepInput

Tensor = torch.Tensor
Int32 = npt.NDArray[np.int32]
_NOTHING = (np.empty(0, dtype=np.int32),) * 2


@dataclass(frozen=True, slots=True)
class HostStep:
    """What the host knows of a step, copied, so that the tables may move on before the device has read it.

    Args:
        rows: int32 [T] by name; of rows that the device places only the defaults.
        blocks, pages: (entries, values), int32 [n], of the flat tables that changed.
        resumed: int32 by name, rows that are not run and whose n-gram history is written; one set for each earlier step
            that failed, too.
        writers: slots of the rows int32 [T], -1 for rows whose entries are in blocks that others share, which are not
            written again; None without any.
        kept: int32 by name, rows that go on into the decoder layers; None for all.
        sets: (array of the builder, slot, value or row) of requests that came since the last step.
        width: see `StepInput`.
        override: f32 rows that replace embeddings and, for each row of the step, which of them (-1: none).
    """

    rows: dict[str, Int32]
    resumed: list[dict[str, Int32]]
    writers: Int32 | None
    kept: HostKept | None
    blocks: tuple[Int32, Int32]
    pages: tuple[Int32, Int32]
    sets: list[tuple[Tensor, int, Int32]]
    width: dict[int, int]
    override: tuple[npt.NDArray[np.float32], Int32] | None

    def following(self) -> HostStep:
        """The steps behind it in a turn, all alike: the device knows tokens and positions, nothing else changes."""
        return HostStep(
            rows=following_rows(self.rows),
            resumed=[],
            writers=None,
            kept=None,
            blocks=_NOTHING,
            pages=_NOTHING,
            sets=[],
            width=self.width,
            override=None,
        )


@dataclass(frozen=True, slots=True)
class BuiltStep:
    """A step whose rows are on the device.

    Args:
        make: the input of the model, padding at its end; where there is a key, its device calls may be captured
            together with the model's.
        key: equal for steps that are the same calls on the same arrays; None for a step that is like no other.
        counts: rows that each speculative entry got, int32 [speculative], under way; None without any.
    """

    make: Callable[[], StepInput]
    key: Hashable | None
    counts: HostFuture | None


class DraftState:
    """Drafts by request slot, on the device.

    Args:
        plan: its backend holds the arrays.
        slots: request slots, the scratch slot included (R + 1).
        drafts: most drafts of a request (B).
        vocab: tokens of the vocabulary (V).

    Attributes:
        tokens: int32 [R + 1, B], -1 where there is none.
        weights: int32 [(R + 1) * B, V], the distribution that each draft was drawn from.
        rates: f32 [R + 1, B], probability that the drafts up to this one are accepted, as the model believes.
    """

    def __init__(self, plan: Plan, slots: int, drafts: int, vocab: int) -> None:
        backend = plan.backend
        self.count = drafts
        self.tokens = backend.from_host(np.full((slots, drafts), -1, dtype=np.int32))
        self.weights = backend.empty((slots * drafts, vocab), torch.int32)
        self.rates = backend.from_host(np.zeros((slots, drafts), dtype=np.float32))


class StepBuilder:
    """Owns the device buffers of a step and the device arrays by request slot.

    Args:
        plan: binds the ops that build a step.
        table: the requests.
        tables: block tables, mirrored to the device row by row as they change.
        ratios: compress ratios of the model.
        block_size: tokens per main block.
        max_rows: most rows of a step.
        replay: how decoder layers treat prompts.
        ring: positions in the n-gram history; 0 without one.
        drafts: drafts by slot; None without speculation.
    """

    def __init__(
        self,
        plan: Plan,
        table: RequestTable,
        tables: Tables,
        ratios: list[int],
        block_size: int,
        max_rows: int,
        replay: Replay,
        ring: int = 0,
        drafts: DraftState | None = None,
    ) -> None:
        backend = self._backend = plan.backend
        self._table, self._tables, self._ratios, self._block_size = table, tables, ratios, block_size
        self.drafts, self.max_rows = drafts, max_rows
        slots = table.max_slots + 1  # the last is scratch, for rows that are skipped

        def by_slot(fill: int, *shape: int) -> Tensor:
            return backend.from_host(np.full((slots, *shape), fill, dtype=np.int32))

        self.last_token, self.length, self.limit = by_slot(-1), by_slot(0), by_slot(0)
        self.replay = replay
        self.window_first = by_slot(0)
        self.window_first_upper = by_slot(0) if replay.bounded else None
        self._sets: list[tuple[Tensor, int, Int32]] = []
        self._resumed: list[dict[str, Int32]] = []
        self._ring = ring
        self.block_table = by_slot(-1, tables.main.columns)
        self.window_table = by_slot(-1, tables.window.columns)
        self._rows = RowBuffers(backend, max_rows)
        self._kept_rows = {name: backend.empty((max_rows,), torch.int32) for name in HostKept._fields}
        self._inputs = plan.bind("aux.step_inputs", "step")
        self._scatter = plan.bind("scatter_rows", "step")
        self._take = plan.bind("gather_rows", "step")
        if drafts is not None:
            self._verify_rows = plan.bind("aux.verify_rows", "step")
            self._place = backend.from_host(np.arange(max_rows, dtype=np.int32))
            self._ordinals = backend.from_host(np.arange(1, 2 + drafts.count, dtype=np.int32))
            self._most = backend.from_host(np.full(slots, drafts.count, dtype=np.int32))

    def admit(self, slot: int) -> None:
        """Set the limit of a slot that holds a new request, with the next step; the rest is set when it starts."""
        self._set(self.limit, slot, self._table.limit[slot])

    def resume(self, slot: int, window_start: int, drafts: Int32 | None = None) -> None:
        """Set the device arrays of an admitted slot whose first tokens come with their cache contents.

        Args:
            slot: the slot.
            window_start: lowest position whose window entry exists.
            drafts: int32 [B], drafts of the slot; None for none.
        """
        last = int(self._table.num_tokens[slot]) - 1
        self._set_first(slot, window_start)
        self._set(self.last_token, slot, self._table.tokens[slot, last])
        self._set(self.length, slot, last)
        if self.drafts is not None:
            self._set(self.drafts.tokens, slot, np.full(self.drafts.count, -1) if drafts is None else drafts)

    def _set_first(self, slot: int, window_start: int) -> None:
        self._set(self.window_first, slot, window_start)
        if self.window_first_upper is not None:
            bound = self.replay.first(int(self._table.prompt_len[slot]))
            self._set(self.window_first_upper, slot, max(window_start, bound))

    def _set(self, array: Tensor, slot: int, value: npt.ArrayLike) -> None:
        self._sets.append((array, slot, np.asarray(value, dtype=np.int32)))

    def prepare(self, plan: StepPlan) -> HostStep:
        """Copy what the host knows of a step; later changes of the tables do not reach it."""
        resumed = self._resume(plan)
        sets, self._sets = self._sets, []
        rows = host_rows(self._table, plan)
        return HostStep(
            rows=rows,
            resumed=resumed,
            writers=self._writers(rows, plan.draft_rows),
            kept=self._kept(plan),
            blocks=self._tables.main.take_changed(),
            pages=self._tables.window.take_changed(),
            sets=sets,
            width=self._widths(int(plan.ends.max()) + plan.steps - 1),
            override=self._override(plan),
        )

    def unbuilt(self, host: HostStep) -> None:
        """Remember what a step brought and may not have reached the device."""
        self._sets = host.sets + self._sets
        self._resumed = host.resumed + self._resumed
        self._tables.main.mark_changed(host.blocks[0])
        self._tables.window.mark_changed(host.pages[0])

    def build(self, plan: StepPlan, host: HostStep, repeat: bool = False) -> BuiltStep:
        """Write the rows of ``plan`` into the device buffers.

        Rows whose token is drawn by a step in flight take token and position from `last_token` and `length`, rows of
        drafts their token from `drafts`.

        Args:
            plan, host: the step, and what `prepare` gave for it.
            repeat: fill decode steps up to the next power of two of rows, so that few differ.
        """
        for array, at, value in host.sets:
            self._send_rows(array, (np.array([at], dtype=np.int32), value[None]))
        self._send_rows(self.block_table.view(-1), host.blocks)
        self._send_rows(self.window_table.view(-1), host.pages)
        hint = "decode" if int(plan.num_rows[plan.speculative :].max(initial=1)) == 1 else "prefill"
        count = size = len(host.rows["ids"])
        fixed = hint == "decode" and host.kept is None and host.override is None and host.writers is None
        repeat = repeat and fixed and padded(count) <= self.max_rows
        if repeat:
            size = padded(count)
        device = self._rows.upload(host.rows, size)
        counts = self._place_drafts(plan, device) if plan.speculative else None
        key = (size, tuple(host.width.items())) if repeat else None
        return BuiltStep(lambda: self._input(host, plan.draft_rows, hint, device), key, counts)

    def _input(self, host: HostStep, draft_rows: int, hint: str, device: dict[str, Tensor]) -> StepInput:
        ids, positions, slot = self._step_inputs(device, device["slot"])
        rows = Rows(ids, positions, slot, device["chunk_start"], device["chunk_end"], device["roles"])
        override = None if host.override is None else [self._backend.from_host(array) for array in host.override]
        return StepInput(
            rows=rows,
            block_table=self.block_table,
            window_table=self.window_table,
            window_first=self.window_first,
            width=host.width,
            hint=hint,
            window_first_upper=self.window_first_upper,
            kept=self._keep(host.kept, draft_rows, device),
            override=None if override is None else override[0],
            override_index=None if override is None else override[1],
            writer=None if host.writers is None else self._write_slots(device, host.writers, draft_rows),
        )

    def _step_inputs(self, device: dict[str, Tensor], slot: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, positions and slots int32 [T] of rows whose slots, as the host knows them, are ``slot``."""
        drafts = () if self.drafts is None else (self.drafts.tokens,)
        own = (self.last_token, self.length, self.limit, *drafts)
        found: tuple[Tensor, Tensor, Tensor] = self._inputs(
            device["ids"], device["positions"], device["from_device"], slot, *own
        )
        return found

    def _resume(self, plan: StepPlan) -> list[dict[str, Int32]]:
        """Prepare the device state of requests that start, with a cached prefix or without one."""
        if plan.started:
            slots, starts, windows = np.array(plan.started, dtype=np.int32).T
            state = prefix_state(self._table, slots, starts, windows, self._ring)
            for slot, start in zip(state.slots.tolist(), state.window_start.tolist(), strict=True):
                self._set_first(slot, start)
            if state.rows:
                self._resumed.append(state.rows)
        resumed, self._resumed = self._resumed, []
        return resumed

    def resumed_rows(self, host: HostStep) -> list[Rows]:
        """Rows of a step for `Model.remember`."""
        send = self._backend.from_host
        return [Rows(**{name: send(array) for name, array in rows.items()}) for rows in host.resumed]

    def _writers(self, host: dict[str, Int32], draft_rows: int) -> Int32 | None:
        slot = host["slot"]
        again = (host["positions"] < self._tables.main.shared[slot]) & (host["from_device"] == 0)
        again[:draft_rows] = False
        return np.where(again, np.int32(-1), slot) if again.any() else None

    def _write_slots(self, device: dict[str, Tensor], host: Int32, draft_rows: int) -> Tensor:
        """Slots int32 [T] as the step's, -1 also for rows that write no entry."""
        writers = self._backend.from_host(host)
        if draft_rows:
            self._scatter(writers, self._place[:draft_rows], device["slot"][:draft_rows])
        return self._step_inputs(device, writers)[2]

    def _place_drafts(self, plan: StepPlan, device: dict[str, Tensor]) -> HostFuture:
        """Let the device share the rows of the speculative entries out; they are the first of the step."""
        if self.drafts is None:
            raise AssertionError("a step has drafts that the engine was not made for")
        count, rows = plan.speculative, plan.draft_rows
        slot, offset, start, end, counts = self._verify_rows(
            self._backend.from_host(plan.slots[:count]),
            self.drafts.rates,
            self.drafts.tokens,
            self.length,
            self.limit,
            self._most[:count],
            rows,
        )
        source = self._take(self._ordinals, offset)
        found = {"slot": slot, "positions": offset, "from_device": source, "chunk_start": start, "chunk_end": end}
        for name, values in found.items():
            self._scatter(device[name], self._place[:rows], values)
        return self._backend.to_host(counts)

    def _kept(self, plan: StepPlan) -> HostKept | None:
        spec = plan.speculative
        starts, counts = plan.starts[spec:], plan.num_rows[spec:]
        prompts = self._table.prompt_len[plan.slots[spec:]]
        if plan.draft_rows:  # decode rows, all kept, stand before the others
            starts, counts, prompts = (
                np.concatenate((np.array([first], dtype=np.int32), array))
                for first, array in ((1 << 30, starts), (plan.draft_rows, counts), (0, prompts))
            )
        return self.replay.kept(starts, counts, prompts)

    def _keep(self, host: HostKept | None, draft_rows: int, device: dict[str, Tensor]) -> KeptRows | None:
        if host is None:
            return None
        kept = {name: self._upload(self._kept_rows[name], array) for name, array in host._asdict().items()}
        if draft_rows:  # they are the first of the kept rows too
            for name in ("chunk_start", "chunk_end"):
                self._scatter(kept[name], self._place[:draft_rows], device[name][:draft_rows])
        return KeptRows(**kept)

    def _upload(self, target: Tensor, array: Int32) -> Tensor:
        self._backend.from_host(array, target)
        return target[: array.shape[0]]

    def _send_rows(self, target: Tensor, changed: tuple[Int32, Int32]) -> None:
        rows, values = changed
        if len(rows):
            self._scatter(target, self._backend.from_host(rows), self._backend.from_host(values))

    def _widths(self, longest: int) -> dict[int, int]:
        """Bounds of visible entries that take few different values: blocks times a power of two."""
        blocks = -(-longest // self._block_size)
        blocks = min(1 << (blocks - 1).bit_length(), self._tables.main.columns)
        return {ratio: blocks * (self._block_size // ratio) for ratio in self._ratios}

    def _override(self, plan: StepPlan) -> tuple[npt.NDArray[np.float32], Int32] | None:
        """Rows that replace embeddings in this step, and for each row which of them (-1: none)."""
        entries = np.flatnonzero(self._table.has_override[plan.slots])
        if not len(entries):
            return None
        rows, total = [], 0
        index: Int32 | None = None
        first = plan.row_ends - plan.num_rows
        for i in entries.tolist():
            extras = self._table.extras(int(plan.slots[i]))
            if extras.embed_rows is None or extras.embed_positions is None or i < plan.speculative:
                continue
            offset = extras.embed_positions - plan.starts[i]
            inside = (offset >= 0) & (offset < plan.num_rows[i])
            count = int(inside.sum())
            if not count:
                continue
            if index is None:
                index = np.full(plan.total_rows, -1, dtype=np.int32)
            index[first[i] + offset[inside]] = np.arange(total, total + count, dtype=np.int32)
            rows.append(_as_f32(extras.embed_rows[inside]))
            total += count
        return None if index is None else (np.concatenate(rows), index)


def _as_f32(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """float32 rows, or bfloat16 bits in uint16, as float32."""
    if rows.dtype == np.uint16:
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float32)

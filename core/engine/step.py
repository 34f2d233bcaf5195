"""From a scheduler's plan to a step's device arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from tandem.cache.space import Tables
from tandem.contract.plan import Plan
from tandem.contract.types import Rows
from tandem.engine.plan import StepPlan
from tandem.engine.requests import RequestTable
from tandem.engine.resume import PrefixState
from tandem.model.replay import HostKept, Replay
from tandem.model.step import KeptRows, StepInput

Tensor = torch.Tensor
Int32 = npt.NDArray[np.int32]


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
    ) -> None:
        backend = self._backend = plan.backend
        self._table, self._tables, self._ratios, self._block_size = table, tables, ratios, block_size
        slots = table.max_slots + 1  # the last is scratch, for rows that are skipped

        def by_slot(fill: int, *shape: int) -> Tensor:
            return backend.from_host(np.full((slots, *shape), fill, dtype=np.int32))

        self.last_token, self.length, self.limit = by_slot(-1), by_slot(0), by_slot(0)
        self.replay = replay
        self.window_first = by_slot(0)
        self.window_first_upper = by_slot(0) if replay.bounded else None
        self.block_table = by_slot(-1, tables.main.columns)
        self.window_table = by_slot(-1, tables.window.columns)
        names = ["ids", "positions", "from_device", "slot", "chunk_start", "chunk_end", "roles"]
        names += [f"kept_{name}" for name in HostKept._fields]
        self._buffers = {name: backend.empty((max_rows,), torch.int32) for name in names}
        self._inputs = plan.bind("aux.step_inputs", "step")
        self._commit = plan.bind("aux.commit", "step")
        self._scatter = plan.bind("scatter_rows", "step")

    def admit(self, slot: int) -> None:
        """Set the device arrays of a slot that holds a new request."""
        self._set(self.limit, slot, int(self._table.limit[slot]))
        self._set_first(slot, 0)

    def resume(self, slot: int, window_start: int) -> None:
        """Set the device arrays of an admitted slot whose first tokens come with their cache contents.

        Args:
            slot: the slot.
            window_start: lowest position whose window entry exists.
        """
        last = int(self._table.num_tokens[slot]) - 1
        self._set_first(slot, window_start)
        self._set(self.last_token, slot, int(self._table.tokens[slot, last]))
        self._set(self.length, slot, last)

    def resume_prefix(self, state: PrefixState, remember: Callable[[Rows], None]) -> None:
        """Set the device state of requests that start, with a cached prefix or without one.

        Args:
            state: of the requests.
            remember: writes the n-gram history of rows that are not run; see `Model.remember`.
        """
        for slot, start in zip(state.slots.tolist(), state.window_start.tolist(), strict=True):
            self._set_first(slot, start)
        if state.rows:
            remember(Rows(**{name: self._backend.from_host(array) for name, array in state.rows.items()}))

    def _set_first(self, slot: int, window_start: int) -> None:
        self._set(self.window_first, slot, window_start)
        if self.window_first_upper is not None:
            bound = self.replay.first(int(self._table.prompt_len[slot]))
            self._set(self.window_first_upper, slot, max(window_start, bound))

    def _kept(self, plan: StepPlan) -> KeptRows | None:
        """Rows that go on into the decoder layers, None for all."""
        host = self.replay.kept(plan.starts, plan.num_rows, self._table.prompt_len[plan.slots])
        if host is None:
            return None
        return KeptRows(**{name: self._upload(f"kept_{name}", array) for name, array in host._asdict().items()})

    def _set(self, array: Tensor, slot: int, value: int) -> None:
        index, values = (self._backend.from_host(np.array([n], dtype=np.int32)) for n in (slot, value))
        self._scatter(array, index, values)

    def build(self, plan: StepPlan) -> StepInput:
        """Write the rows of ``plan`` into the device buffers.

        Rows whose token is drawn by a step in flight take token and position from `last_token` and `length`.
        """
        self._upload_tables()
        host = self._host_rows(plan)
        device = {name: self._upload(name, array) for name, array in host.items()}
        ids, positions, slot = self._inputs(
            device["ids"],
            device["positions"],
            device["from_device"],
            device["slot"],
            self.last_token,
            self.length,
            self.limit,
        )
        rows = Rows(ids, positions, slot, device["chunk_start"], device["chunk_end"], device["roles"])
        override, index = self._override(plan)
        writers = self._writers(host)
        return StepInput(
            rows=rows,
            block_table=self.block_table,
            window_table=self.window_table,
            window_first=self.window_first,
            width=self._widths(int(plan.ends.max())),
            hint="decode" if int(plan.num_rows.max()) == 1 else "prefill",
            window_first_upper=self.window_first_upper,
            kept=self._kept(plan),
            override=override,
            override_index=index,
            writer=None if writers is None else self._write_slots(device, writers),
        )

    def _writers(self, host: dict[str, Int32]) -> Int32 | None:
        """Slots of the rows int32 [T], -1 for rows whose entries are in blocks that others share; None without any."""
        slot = host["slot"]
        again = (host["positions"] < self._tables.main.shared[slot]) & (host["from_device"] == 0)
        return np.where(again, np.int32(-1), slot) if again.any() else None

    def _write_slots(self, device: dict[str, Tensor], writers: Int32) -> Tensor:
        """Slots int32 [T] as the step's, -1 also for rows that write no entry."""
        own = (self.last_token, self.length, self.limit)
        place = (device["ids"], device["positions"], device["from_device"])
        slot: Tensor = self._inputs(*place, self._backend.from_host(writers), *own)[2]
        return slot

    def commit(self, tokens: Tensor, slots: Tensor, positions: Tensor) -> None:
        """Hand drawn tokens to the next step: int32 [N] each, positions being those of the rows drawn from."""
        self._commit(tokens, slots, positions, self.last_token, self.length)

    def _upload(self, name: str, array: Int32) -> Tensor:
        self._backend.from_host(array, self._buffers[name])
        return self._buffers[name][: array.shape[0]]

    def _host_rows(self, plan: StepPlan) -> dict[str, Int32]:
        counts, ends = plan.num_rows, plan.row_ends
        total, table = int(ends[-1]), self._table
        slot = np.repeat(plan.slots, counts)
        start = np.repeat(ends - counts, counts)
        positions = np.arange(total, dtype=np.int32) - start + np.repeat(plan.starts, counts)
        ids = table.tokens[slot, positions]
        roles = np.zeros(total, dtype=np.int32)
        if table.has_roles[plan.slots].any():
            roles[:] = table.roles_array()[slot, positions]
        from_device = np.zeros(total, dtype=np.int32)
        if plan.from_device.any():
            drawn = (ends - 1)[plan.from_device]
            from_device[drawn] = 1
            positions[drawn] = 0  # an offset to the device's length
        return {
            "ids": ids,
            "positions": positions,
            "from_device": from_device,
            "slot": slot,
            "chunk_start": start,
            "chunk_end": np.repeat(ends, counts),
            "roles": roles,
        }

    def _upload_tables(self) -> None:
        for mirror, target in (
            (self._tables.main, self.block_table),
            (self._tables.window, self.window_table),
        ):
            dirty = mirror.take_dirty()
            if len(dirty):
                try:
                    rows = self._backend.from_host(mirror.table[dirty])
                    self._scatter(target, self._backend.from_host(dirty), rows)
                except BaseException:
                    mirror.mark_dirty(dirty)
                    raise

    def _widths(self, longest: int) -> dict[int, int]:
        """Bounds of visible entries that take few different values: blocks times a power of two."""
        blocks = -(-longest // self._block_size)
        blocks = min(1 << (blocks - 1).bit_length(), self._tables.main.columns)
        return {ratio: blocks * (self._block_size // ratio) for ratio in self._ratios}

    def _override(self, plan: StepPlan) -> tuple[Tensor | None, Tensor | None]:
        """Rows that replace embeddings in this step, and for each row which of them (-1: none)."""
        rows, total = [], 0
        index: Int32 | None = None
        first = plan.row_ends - plan.num_rows
        for i, slot in enumerate(plan.slots.tolist()):
            extras = self._table.extras(slot)
            if extras.embed_rows is None or extras.embed_positions is None:
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
        if index is None:
            return None, None
        return self._backend.from_host(np.concatenate(rows)), self._backend.from_host(index)


def _as_f32(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """float32 rows, or bfloat16 bits in uint16, as float32."""
    if rows.dtype == np.uint16:
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float32)

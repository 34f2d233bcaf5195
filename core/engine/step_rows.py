"""The rows of a step: int32 arrays on the host, and their place on the device."""

from __future__ import annotations

import numpy as np
import torch

from tandem.contract.backend import Backend
from tandem.engine.plan import Int32, StepPlan
from tandem.engine.requests import RequestTable

Tensor = torch.Tensor
NAMES = ("ids", "positions", "from_device", "slot", "chunk_start", "chunk_end", "roles")


def host_rows(table: RequestTable, plan: StepPlan) -> dict[str, Int32]:
    """The rows of a plan by name, int32 [T]; of rows that the device places, zeros."""
    first, spec = plan.draft_rows, plan.speculative
    counts, ends = plan.num_rows[spec:], plan.row_ends[spec:]
    total = plan.total_rows
    single = total - first == len(counts)  # mostly, and then nothing is to be repeated

    def by_row(values: Int32) -> Int32:
        return values.copy() if single else np.repeat(values, counts)

    slot, start = by_row(plan.slots[spec:]), by_row(ends - counts)
    positions = np.arange(first, total, dtype=np.int32) - start + by_row(plan.starts[spec:])
    ids = table.tokens[slot, positions]
    roles = np.zeros(len(slot), dtype=np.int32)
    if table.has_roles[plan.slots[spec:]].any():
        roles[:] = table.roles_array()[slot, positions]
    from_device = np.zeros(len(slot), dtype=np.int32)
    if plan.from_device[spec:].any():
        drawn = (ends - 1 - first)[plan.from_device[spec:]]
        from_device[drawn] = 1
        positions[drawn] = 0  # an offset to the device's length
    rows = dict(zip(NAMES, (ids, positions, from_device, slot, start, by_row(ends), roles), strict=True))
    if not first:
        return rows
    zeros = np.zeros(first, dtype=np.int32)
    return {name: np.concatenate((zeros, array)) for name, array in rows.items()}


def following_rows(rows: dict[str, Int32]) -> dict[str, Int32]:
    """Rows of the steps that decode behind a step of one row a request."""
    zeros = np.zeros_like(rows["ids"])
    drawn = {"ids": zeros, "positions": zeros, "from_device": zeros + 1, "roles": zeros}
    return rows | drawn


class RowBuffers:
    """Device memory for the rows of a step; rows of one size always have the same addresses.

    Args:
        backend: holds it.
        max_rows: most rows of a step.
    """

    def __init__(self, backend: Backend, max_rows: int) -> None:
        self._backend, self.max_rows = backend, max_rows
        self._memory = backend.empty((len(NAMES) * aligned(max_rows),), torch.int32)
        self._views: dict[int, dict[str, Tensor]] = {}

    def upload(self, rows: dict[str, Int32], size: int) -> dict[str, Tensor]:
        """All arrays in one copy; padding rows, which see and write nothing, fill them up to ``size``."""
        count, stride = len(rows["ids"]), aligned(size)
        together = np.zeros((len(NAMES), stride), dtype=np.int32)
        for place, name in zip(together, NAMES, strict=True):
            place[:count] = rows[name]
        if size > count:
            together[NAMES.index("slot"), count:] = -1
            own = np.arange(count, stride, dtype=np.int32)
            together[NAMES.index("chunk_start"), count:] = own
            together[NAMES.index("chunk_end"), count:] = own + 1
        self._backend.from_host(together.reshape(-1), self._memory)
        if size not in self._views:
            self._views[size] = {name: self._memory[i * stride : i * stride + size] for i, name in enumerate(NAMES)}
        return self._views[size]


def aligned(count: int) -> int:
    """Elements from one array to the next, so that each begins where a copy or a vector may begin: 64 bytes."""
    return -(-count // 16) * 16


def padded(count: int) -> int:
    """Rows of a step that is captured: the next power of two."""
    return 1 << max(count - 1, 0).bit_length()



"""Captured forwards: decode steps run from a graph where the backend has graphs.

A step of T rows runs as one of the next power of two; rows that fill it up are padding, which sees and writes nothing.
The first step of a shape runs as usual, on the buffers of its graph, so that a device compiles and allocates what it
needs; the second is captured; from then on a step is six copies of rows and a replay.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, fields

import numpy as np
import torch

from tandem.contract.backend import Graph
from tandem.contract.plan import Plan
from tandem.contract.types import Rows
from tandem.model.registry import Model
from tandem.model.step import StepInput

Tensor = torch.Tensor
MOST = 64  # graphs; steps of further shapes run as usual
_NAMES = tuple(field.name for field in fields(Rows))


@dataclass(frozen=True, slots=True)
class _Key:
    """What a graph is for; an array at another address needs another graph."""

    rows: int
    width: tuple[tuple[int, int], ...]
    hint: str
    addresses: tuple[int, ...]


@dataclass(slots=True)
class _Captured:
    """A graph and what it reads and writes; without a graph, a shape that was met once."""

    step: StepInput
    graph: Graph | None = None
    hidden: Tensor | None = None


class _Buffers:
    """The rows of steps of one size, at fixed addresses: int32 [6, size], a field each."""

    def __init__(self, plan: Plan, size: int) -> None:
        put = plan.backend.from_host
        padding = {"slot": np.full(size, -1), "chunk_start": np.arange(size), "chunk_end": np.arange(1, size + 1)}
        values = np.stack([padding.get(name, np.zeros(size)) for name in _NAMES]).astype(np.int32)
        self._padding, self._memory = put(values), put(values)
        self._place = put(np.arange(size, dtype=np.int32))
        self._every = put(np.arange(len(_NAMES), dtype=np.int32))
        self._scatter = plan.bind("scatter_rows", "graph")
        self.rows = Rows(*(self._memory[i] for i in range(len(_NAMES))))

    def fill(self, rows: Rows) -> None:
        """The rows of a step, then padding."""
        count = rows.ids.shape[0]
        if count < self._place.shape[0]:
            self._scatter(self._memory, self._every, self._padding)
        for name in _NAMES:
            self._scatter(getattr(self.rows, name), self._place[:count], getattr(rows, name))


class GraphCache:
    """Runs forwards, from graphs where that can be.

    Args:
        plan: the plan that models were bound by; its backend may have graphs.
        max_rows: most rows of a step.
    """

    def __init__(self, plan: Plan, max_rows: int) -> None:
        self._plan, self._max_rows = plan, max_rows
        self._enabled = plan.graphs
        self._buffers: dict[int, _Buffers] = {}
        self._known: dict[_Key, _Captured] = {}
        self.captured = self.replayed = 0

    def forward(self, model: Model, step: StepInput) -> Tensor:
        """Hidden rows bf16 [T, H], as `Model.forward`, of the one model there is; they hold until the next forward."""
        count = step.rows.ids.shape[0]
        size = 1 << max(count - 1, 0).bit_length()
        if not self._enabled or not count or size > self._max_rows or not _fixed(step):
            return model.forward(step)
        key = _Key(size, tuple(sorted(step.width.items())), step.hint, _addresses(step))
        known = self._known.get(key)
        if known is None and len(self._known) >= MOST:
            return model.forward(step)
        if size not in self._buffers:
            self._buffers[size] = _Buffers(self._plan, size)
        buffers = self._buffers[size]
        buffers.fill(step.rows)
        if known is None:
            static = dataclasses.replace(step, rows=buffers.rows)
            hidden = model.forward(static)
            self._known[key] = _Captured(static)
            return hidden[:count]
        return self._replay(model, known)[:count]

    def _replay(self, model: Model, known: _Captured) -> Tensor:
        if known.graph is None:

            def forward() -> None:
                known.hidden = model.forward(known.step)

            known.graph = self._plan.backend.capture(forward)
            self.captured += 1
        known.graph.replay()
        self.replayed += 1
        if known.hidden is None:
            raise AssertionError("a capture did not call what it captures")
        return known.hidden


def _fixed(step: StepInput) -> bool:
    """Whether all arrays of a step but its rows stay where they are from step to step."""
    return step.hint == "decode" and step.kept is None and step.override is None and step.writer is None


def _addresses(step: StepInput) -> tuple[int, ...]:
    tables = (step.block_table, step.window_table, step.window_first, step.window_first_upper)
    return tuple(table.data_ptr() for table in tables if table is not None)

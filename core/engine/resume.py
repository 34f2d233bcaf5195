"""Requests that start after a cached prefix: what their device state must hold before their first row runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tandem.engine.requests import RequestTable

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PrefixState:
    """Host copies of what `StepBuilder.resume_prefix` writes.

    Args:
        slots: int32 [n], requests that start.
        window_start: int32 [n], lowest position whose window entry exists.
        rows: int32 [T] by name of `Rows`: the last tokens before the first row of each; empty where none has any.
    """

    slots: Int32
    window_start: Int32
    rows: dict[str, Int32]


def prefix_state(table: RequestTable, slots: Int32, starts: Int32, window_start: Int32, ring: int) -> PrefixState:
    """Copy the state of requests whose rows begin at ``starts`` int32 [n] instead of at 0.

    Args:
        table: the requests.
        slots: int32 [n], distinct.
        starts: positions of the first rows; 0 for a request that found nothing.
        window_start: int32 [n], see `PrefixState`.
        ring: positions in the n-gram history.
    """
    counts = np.minimum(starts, ring)
    ends = np.cumsum(counts, dtype=np.int32)
    total = int(ends[-1]) if len(ends) else 0
    if not total:
        return PrefixState(slots.copy(), window_start.copy(), {})
    slot, first = np.repeat(slots, counts), np.repeat(ends - counts, counts)
    positions = np.arange(total, dtype=np.int32) - first + np.repeat(starts - counts, counts)
    roles = np.zeros(total, dtype=np.int32)
    if table.has_roles[slots].any():
        roles[:] = table.roles_array()[slot, positions]
    rows = {
        "ids": table.tokens[slot, positions],
        "positions": positions,
        "slot": slot,
        "chunk_start": first,
        "chunk_end": np.repeat(ends, counts),
        "roles": roles,
    }
    return PrefixState(slots.copy(), window_start.copy(), rows)

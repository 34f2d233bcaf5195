"""Launches of csrc/ascend/_grid.h: items dealt to SIMT threads, one after another."""

from __future__ import annotations

from tandem.backends.ascend.plan import Device, Plan

THREADS = 256  # of a block


def plan(device: Device, items: int, read: int, written: int) -> list[Plan]:
    """One launch over so many items that touches global memory alone; none where there are no items."""
    tasks = -(-items // THREADS)
    return [Plan("vector", tasks, min(tasks, device.vector_cores), read, written)] if items else []

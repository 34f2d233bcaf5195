"""What launches move and how they fill the cores, by shapes alone.

A kernel file states it in ``PLAN``, a function for each op with the arguments of the op after the device:

    def _plan(device: Device, x: Tensor, weight: Tensor | None, eps: float, quant: bool) -> list[Plan]:
        rows, width = x.shape
        read, written = rows * width * 2, rows * width * 2
        return [Plan("vector", tasks=rows, blocks=min(rows, device.vector_cores), read=read, written=written,
                     ub=2 * (read + written))]

    PLAN = {"rms_norm": _plan}

One `Plan` for each launch, in their order.  The tables of floors are made of it, and in emulation every figure is held
against what the kernel did.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Device:
    """What kernels tile by, field by field `tandem_ascend_device` of csrc/include/tandem_ascend.h."""

    cube_cores: int
    vector_cores: int
    ub_bytes: int = 248 << 10
    l1_bytes: int = 512 << 10
    l0a_bytes: int = 64 << 10
    l0b_bytes: int = 64 << 10
    l0c_bytes: int = 256 << 10


EMULATED = Device(2, 4)


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch.

    Args:
        kind: cores of a block: one vector core, one cube core, or ``mixed``, one cube core and its two vector cores.
        tasks: pieces of work that are dealt to the blocks, each of which one block does alone: rows, or tiles.
        blocks: blocks launched; at most as many as there are tasks and cores.
        read, written: bytes that global memory delivers and takes.  What several blocks read at about the same time,
            like the weight of a norm, counts once; what is read again after the whole of a row or a tensor has gone
            by counts again.  Never less than the distinct bytes, never more than all accesses together.
        ub: bytes read from and written to UB, all transfers and vector instructions of all cores together.
        l1: the same of L1.
    """

    kind: Literal["vector", "cube", "mixed"]
    tasks: int
    blocks: int
    read: int
    written: int
    ub: int = 0
    l1: int = 0

    def cores(self, device: Device) -> int:
        """Blocks that run at the same time."""
        return device.vector_cores if self.kind == "vector" else device.cube_cores

    def occupancy(self, device: Device) -> float:
        """Share of the device's cores that have a block."""
        return min(1.0, self.blocks / self.cores(device))

    def last_wave(self, device: Device) -> float:
        """Share of the running blocks that still have a task when each of the others has done its last."""
        running = min(self.blocks, self.cores(device))
        return ((self.tasks - 1) % running + 1) / running if self.tasks and running else 1.0


def traffic(plans: Iterable[Plan]) -> tuple[int, int]:
    """Bytes read and written of all launches of an op."""
    held = list(plans)
    return sum(plan.read for plan in held), sum(plan.written for plan in held)

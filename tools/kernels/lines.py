"""Floors of every op at official shapes beside what the kernels of a backend plan to move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tools.kernels.floors import Floor, least
from tools.kernels.machines import Machine
from tools.kernels.workloads import PHASES, Layouts, Maker, Phase, workloads

FAR = 1.3  # planned traffic above this many floors needs a reason
Traffic = Mapping[str, Callable[..., tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Line:
    """One workload in one phase.

    Args:
        least: what it moves and computes at least.
        planned: bytes that the kernel moves; None for an op that states nothing or runs as a composite.
        why: where that is far above the floor.
    """

    op: str
    site: str
    phase: str
    least: Floor
    planned: int | None
    why: str

    @property
    def ratio(self) -> float | None:
        """Planned traffic over the floor's."""
        return None if self.planned is None else self.planned / self.least.bytes

    @property
    def name(self) -> str:
        """Op and site for a table."""
        return f"`{self.op}` {self.site}".strip()

    def record(self, machine: Machine) -> dict[str, Any]:
        """For machines."""
        moved = {"bytes": self.least.bytes, "flops": self.least.flops, "bound": self.least.bound(machine)}
        times = {"floor_us": self.least.seconds(machine) * 1e6, "planned": self.planned, "why": self.why}
        return {"op": self.op, "site": self.site, "phase": self.phase, **moved, **times, "ratio": self.ratio}


def lines(layouts: Layouts, traffic: Traffic, why: Mapping[str, str]) -> list[Line]:
    """Every workload in every phase.

    Args:
        layouts: of the backend.
        traffic: for an op, its planned bytes (read, written) by its arguments.
        why: for an op, why that is far above the floor.
    """
    maker, found = Maker(layouts), []
    for workload in workloads():
        for phase in PHASES:
            floor = least(workload, phase)
            stated = traffic.get(workload.op)
            moved = None if stated is None else sum(stated(**workload.build(maker, phase)))
            far = moved is not None and moved > FAR * floor.bytes
            reason = why.get(workload.op, "no reason is given") if far else ""
            found.append(Line(workload.op, workload.site, phase.name, floor, moved, reason))
    return found


def gathered(modules: Iterable[ModuleType], attribute: str) -> dict[str, Any]:
    """What modules state by op in a dict of this name."""
    return {op: stated for module in modules for op, stated in getattr(module, attribute, {}).items()}


def title(phase: Phase) -> str:
    """Heading of the table of a phase."""
    return f"### {phase.name}: {phase.rows} rows, {phase.requests} requests of {phase.context} tokens\n\n"


def reasons(found: list[Line]) -> str:
    """The table of reasons."""
    held = {line.op: line.why for line in found if line.why}
    head = f"### Why more than {FAR} floors\n\n| op | reason |\n|---|---|\n"
    return head + "".join(f"| `{op}` | {reason} |\n" for op, reason in sorted(held.items()))


def short(number: float) -> str:
    """Three digits and a unit."""
    for unit in ("", " k", " M", " G"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} T"


def microseconds(floor: Floor, machine: Machine) -> str:
    """The time of a floor."""
    return f"{floor.seconds(machine) * 1e6:.3g} us"

"""Floors of every op at official shapes beside what the kernels plan to move.

    python -m tools.kernels.roofline [--json] [--write docs/ROOFLINE.md]

Nothing here is measured: bytes and operations follow from shapes, times from a device's peak rates.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tandem.backends.cuda import kernels, products_traffic
from tandem.backends.cuda.launch import recording
from tandem.backends.cuda.table import triton_ops
from tools.kernels.cuda import CudaLayouts
from tools.kernels.floors import B200, Floor, floor
from tools.kernels.gates import replace
from tools.kernels.workloads import PHASES, Maker, Phase, Workload, workloads

FAR = 1.3  # planned traffic above this many floors needs a reason


@dataclass(frozen=True, slots=True)
class Line:
    """One workload in one phase.

    Args:
        planned: bytes that the kernel moves; None for an op that runs as a composite.
        why: where that is far above the floor.
    """

    op: str
    site: str
    phase: str
    bytes: int
    flops: int
    bound: str
    floor_us: float
    planned: int | None
    why: str

    @property
    def ratio(self) -> float | None:
        """Planned traffic over the floor's."""
        return None if self.planned is None else self.planned / self.bytes


def planned() -> tuple[dict[str, Callable[..., tuple[int, int]]], dict[str, str]]:
    """(traffic by op, reasons by op) of all kernel files and of the matrix products."""
    traffic: dict[str, Callable[..., tuple[int, int]]] = {}
    why: dict[str, str] = {}
    files = [f"{kernels.__name__}.{m.name}" for m in pkgutil.iter_modules(kernels.__path__) if m.name[0] != "_"]
    for module in (*map(importlib.import_module, files), products_traffic):
        traffic |= getattr(module, "TRAFFIC", {})
        why |= getattr(module, "WHY", {})
    return traffic, why


def lines() -> list[Line]:
    """Every workload in every phase."""
    maker, launchers = Maker(CudaLayouts()), triton_ops()
    traffic, why = planned()
    found = []
    for workload in workloads():
        for phase in PHASES:
            arguments = workload.build(maker, phase)
            least = _least(workload, arguments, phase, launchers)
            moved = sum(traffic[workload.op](**arguments)) if workload.op in traffic else None
            far = moved is not None and moved > FAR * least.bytes
            reason = why.get(workload.op, "no reason is given") if far else ""
            microseconds = least.seconds(B200) * 1e6
            numbers = (least.bytes, least.flops, least.bound(B200), microseconds, moved, reason)
            found.append(Line(workload.op, workload.site, phase.name, *numbers))
    return found


def _least(workload: Workload, arguments: dict[str, Any], phase: Phase, launchers: dict[str, Any]) -> Floor:
    outputs = None
    if workload.op in launchers:
        with recording():
            outputs = launchers[workload.op](**arguments)
    return floor(workload, arguments, outputs, phase)


def page(found: list[Line]) -> str:
    """One table for each phase, and the reasons."""
    parts = []
    for phase in PHASES:
        parts.append(f"### {phase.name}: {phase.rows} rows, {phase.requests} requests of {phase.context} tokens\n\n")
        parts.append("| op | bytes | FLOP | bound | floor | planned / floor |\n|---|---|---|---|---|---|\n")
        parts += [_row(line) for line in found if line.phase == phase.name]
        parts.append("\n")
    reasons = {line.op: line.why for line in found if line.why}
    parts.append(f"### Why more than {FAR} floors\n\n| op | reason |\n|---|---|\n")
    parts += [f"| `{op}` | {reason} |\n" for op, reason in sorted(reasons.items())]
    return "".join(parts)


def _row(line: Line) -> str:
    flops = _short(line.flops) if line.flops else "-"
    ratio = "composite" if line.ratio is None else f"{line.ratio:.2f}"
    name = f"`{line.op}` {line.site}".strip()
    return f"| {name} | {_short(line.bytes)} | {flops} | {line.bound} | {line.floor_us:.3g} us | {ratio} |\n"


def _short(number: float) -> str:
    for unit in ("", " k", " M", " G"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} T"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Floors of every op beside what the kernels plan to move.")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--write", type=Path, help="write the tables between the marks of a page")
    arguments = parser.parse_args()
    found = lines()
    if arguments.write:
        replace(arguments.write, "roofline", page(found))
    elif arguments.json:
        print(json.dumps([{**asdict(line), "ratio": line.ratio} for line in found]))
    else:
        print(page(found))


if __name__ == "__main__":
    main()

"""Floors of every op on an Ascend 950 beside what the kernels plan to move and how they fill the cores.

    python -m tools.kernels.roofline_ascend [--json] [--write docs/ROOFLINE_ASCEND.md]

Nothing here is measured: bytes and operations follow from shapes, times from announced peak rates, and what kernels do
from their own account, which emulation holds against what they touch (tests/ascend).
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tandem.accelerator.kernels import kernel_files
from tandem.backends.ascend import kernels
from tandem.backends.ascend.plan import Device, Plan, traffic
from tools.kernels.lines import Line, gathered, lines, microseconds, reasons, short, title
from tools.kernels.machines import ASCEND_950DT, ASCEND_950PR
from tools.kernels.workloads import PHASES, Canonical, Maker, workloads
from tools.pages import replace

MACHINES = (ASCEND_950PR, ASCEND_950DT)
DEVICES = tuple(Device(*cores) for cores in ASCEND_950PR.cores)
LARGEST = DEVICES[-1]
HEAD = "| op | bytes | FLOP | 950PR | 950DT | planned / floor | UB | L1 | blocks | cores with a block | last wave |\n"
Planned = Callable[..., list[Plan]]


def planned() -> tuple[dict[str, Planned], dict[str, str]]:
    """(plans by op, reasons by op) of all kernel files."""
    modules = kernel_files(kernels)
    return gathered(modules, "PLAN"), gathered(modules, "WHY")


def every_line() -> list[Line]:
    """Every workload in every phase; traffic is that of the largest device."""
    plans, why = planned()
    moved = {op: _traffic(plan) for op, plan in plans.items()}
    return lines(Canonical(), moved, why)


def _traffic(plan: Planned) -> Callable[..., tuple[int, int]]:
    def stated(**arguments: Any) -> tuple[int, int]:
        return traffic(plan(LARGEST, **arguments))

    return stated


def launches() -> dict[tuple[str, str, str], dict[Device, list[Plan]]]:
    """Plans of each device by (op, site, phase)."""
    maker, (plans, _) = Maker(Canonical()), planned()
    return {
        (one.op, one.site, phase.name): {d: plans[one.op](d, **one.build(maker, phase)) for d in DEVICES}
        for one in workloads()
        if one.op in plans
        for phase in PHASES
    }


def silent() -> list[str]:
    """Ops that state nothing."""
    return sorted({one.op for one in workloads()} - set(planned()[0]))


def page(found: list[Line]) -> str:
    """One table for each phase, the reasons, and the ops that state nothing."""
    held, parts = launches(), []
    for phase in PHASES:
        rows = [row(line, held.get((line.op, line.site, line.phase))) for line in found if line.phase == phase.name]
        parts += [title(phase), HEAD, "|" + "---|" * 11 + "\n", *rows, "\n"]
    nothing = ", ".join(f"`{op}`" for op in silent()) or "none"
    return "".join(parts) + reasons(found) + f"\nOps that state no plan: {nothing}.\n"


def row(line: Line, plans: dict[Device, list[Plan]] | None) -> str:
    """A line of a table; ``plans`` of each device."""
    least = line.least
    times = [f"{least.bound(machine)} {microseconds(least, machine)}" for machine in MACHINES]
    cells = [line.name, short(least.bytes), short(least.flops) if least.flops else "-", *times]
    if plans is None:
        return f"| {' | '.join(cells)} |{' - |' * 6}\n"
    own = plans[LARGEST]
    cells += [f"{line.ratio:.2f}", *(short(sum(amounts)) for amounts in zip(*((p.ub, p.l1) for p in own), strict=True))]
    cells += [" + ".join(texts) for texts in zip(*_launches(plans), strict=True)]
    return f"| {' | '.join(cells)} |\n"


def _launches(plans: dict[Device, list[Plan]]) -> Iterator[tuple[str, str, str]]:
    """Blocks, occupancy and last wave of the launches of an op; equal ones in a row are one."""
    texts = [
        (
            f"{own.blocks} {own.kind}",
            percent(by_device[number].occupancy(device) for device, by_device in plans.items()),
            percent(by_device[number].last_wave(device) for device, by_device in plans.items()),
        )
        for number, own in enumerate(plans[LARGEST])
    ]
    for (blocks, occupied, last), same in itertools.groupby(texts):
        count = len(list(same))
        yield blocks if count == 1 else f"{count} x {blocks}", occupied, last


def percent(shares: Iterable[float]) -> str:
    """Shares on the devices in their order; once where they are equal."""
    texts = [f"{100 * share:.0f}" for share in shares]
    return (texts[0] if len(set(texts)) == 1 else "/".join(texts)) + "%"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Floors of every op beside what the Ascend kernels plan to do.")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--write", type=Path, help="write the tables between the marks of a page")
    arguments = parser.parse_args()
    found = every_line()
    if arguments.write:
        replace(arguments.write, "roofline", page(found))
    elif arguments.json:
        held = launches()
        plans = [held.get((line.op, line.site, line.phase), {}).get(LARGEST, []) for line in found]
        both = zip(found, plans, strict=True)
        print(json.dumps([line.record(ASCEND_950PR) | {"launches": [asdict(p) for p in own]} for line, own in both]))
    else:
        print(page(found))


if __name__ == "__main__":
    main()

"""Floors of every op on a B200 beside what the CUDA kernels plan to move.

    python -m tools.kernels.roofline [--json] [--write docs/ROOFLINE.md]

Nothing here is measured: bytes and operations follow from shapes, times from a device's peak rates.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from tandem.accelerator.kernels import kernel_files
from tandem.backends.cuda import kernels, products_traffic
from tools.kernels.cuda import CudaLayouts
from tools.kernels.lines import Line, gathered, microseconds, reasons, short, title
from tools.kernels.lines import lines as every_line
from tools.kernels.machines import B200
from tools.kernels.workloads import PHASES
from tools.pages import replace


def planned() -> tuple[dict[str, Callable[..., tuple[int, int]]], dict[str, str]]:
    """(traffic by op, reasons by op) of all kernel files and of the matrix products."""
    modules = (*kernel_files(kernels), products_traffic)
    return gathered(modules, "TRAFFIC"), gathered(modules, "WHY")


def lines() -> list[Line]:
    """Every workload in every phase."""
    return every_line(CudaLayouts(), *planned())


def page(found: list[Line]) -> str:
    """One table for each phase, and the reasons."""
    parts = []
    for phase in PHASES:
        parts.append(title(phase))
        parts.append("| op | bytes | FLOP | bound | floor | planned / floor |\n|---|---|---|---|---|---|\n")
        parts += [_row(line) for line in found if line.phase == phase.name]
        parts.append("\n")
    return "".join(parts) + reasons(found)


def _row(line: Line) -> str:
    ratio = "composite" if line.ratio is None else f"{line.ratio:.2f}"
    least = line.least
    numbers = [
        short(least.bytes),
        short(least.flops) if least.flops else "-",
        least.bound(B200),
        microseconds(least, B200),
    ]
    return f"| {line.name} | {' | '.join(numbers)} | {ratio} |\n"


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
        print(json.dumps([line.record(B200) for line in found]))
    else:
        print(page(found))


if __name__ == "__main__":
    main()

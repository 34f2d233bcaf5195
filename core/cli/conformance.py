"""`tandem conformance`: whether a backend keeps the contract, level by level."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandem.conformance.emit import emit
from tandem.conformance.golden import export
from tandem.conformance.kit import run as run_kit
from tandem.conformance.report import LEVELS, Report, aligned, failure_lines, speed_rows, summary, table_rows
from tandem.contract.registry import open_backend
from tandem.errors import ConfigError

FAILED = 1


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("conformance", help="check a backend against the contract")
    parser.add_argument("--backend", metavar="NAME", help="backend, NAME or NAME:INDEX; default: that of a run")
    parser.add_argument("--level", choices=LEVELS, default="L1", help="suites up to this level (default L1)")
    parser.add_argument("--quick", action="store_true", help="fewer row counts and repeats; shows no level")
    parser.add_argument("--case", default="", metavar="FILTER", help="OP/, or any part of op/case/check")
    parser.add_argument("--golden", type=Path, metavar="DIR", help="write golden cases instead, op/case by --case")
    parser.add_argument("--emit", type=Path, metavar="FILE", help="write the capability table")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write results.json and report.txt")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Check, print, write.

    Returns:
        0 when all that was checked holds, or golden cases are written, else 1.
    Raises:
        ConfigError: no check or case matches, or a table is asked for from a run that shows no level.
    """
    if arguments.golden:
        return _golden(arguments)
    if arguments.emit and (arguments.quick or arguments.case):
        raise ConfigError(
            "a quick or partial run cannot write a capability table",
            where="--emit",
            why="it shows no level",
            fix="leave out --quick and --case",
        )
    backend = open_backend(arguments.backend, origin="--backend")
    try:
        report = run_kit(
            backend, arguments.level, quick=arguments.quick, case=arguments.case, progress=not arguments.json
        )
        if arguments.report:
            report.write(arguments.report)
        print(json.dumps(report.to_json()) if arguments.json else "\n".join(_lines(report)))
        if arguments.emit and report.claim != "none":
            emit(report, backend, arguments.emit)
    finally:
        backend.close()
    return 0 if report.holds else FAILED


def _golden(arguments: argparse.Namespace) -> int:
    """Write golden cases, which no backend takes part in."""
    others = [f"--{name}" for name in ("backend", "quick", "emit", "report") if getattr(arguments, name)]
    if others:
        raise ConfigError(
            "golden cases are written by themselves",
            where="--golden",
            why=f"{' and '.join(others)} {'are' if len(others) > 1 else 'is'} about checking a backend",
            fix=f"leave out {' and '.join(others)}",
        )
    made = export(arguments.golden, arguments.case, progress=not arguments.json)
    about = {"directory": str(made.directory), "cases": made.cases, "bytes": made.nbytes}
    size = f"{len(made.cases)} cases, {made.nbytes / 1e6:.1f} MB"
    print(json.dumps(about) if arguments.json else f"{size} in {made.directory}; check.py there judges outputs")
    return 0


def _lines(report: Report) -> Iterator[str]:
    yield f"backend {report.backend}, contract {report.contract}, {report.verification}"
    if len(rows := table_rows(report)) > 1:
        yield from aligned(rows)
        yield ""
    if report.speed:
        yield from aligned(speed_rows(report))
        yield ""
    yield from failure_lines(report)
    yield from summary(report)

"""`tandem parity diff` and `tandem parity swap`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tandem.contract.registry import open_backend
from tandem.errors import TraceError
from tandem.parity import report
from tandem.parity.diff import diff
from tandem.parity.freerun import swap
from tandem.parity.legal import LegalNoise
from tandem.parity.measure import LeafError
from tandem.parity.pairs import Side
from tandem.parity.swap import MEANING, check_decision
from tandem.parity.trace import Trace
from tandem.parity.verdict import verdict


def add_parsers(commands: Any) -> None:
    """Register both."""
    _add_diff(commands)
    _add_swap(commands)


def _add_diff(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "diff", help="compare a trace with its replay, or with a recording of the same prompts elsewhere"
    )
    parser.add_argument("trace", metavar="TRACE", type=Path)
    parser.add_argument("other", metavar="TRACE2", type=Path)
    parser.add_argument("--report", metavar="DIR", type=Path, help="write report.html, results.json and summary.txt")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(handler=run_diff)


def _add_swap(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "swap", help="find the op calls that make a decision flip on another backend"
    )
    parser.add_argument("trace", metavar="TRACE", type=Path)
    parser.add_argument("--backend", metavar="NAME[:INDEX]", help="overrides TANDEM_BACKEND")
    parser.add_argument(
        "--decision",
        metavar="KIND:STEP:ROW:LAYER",
        default="",
        help="default: the first that is a defect, else the first",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(handler=run_swap)


def open_other(path: Path, one: Trace) -> Trace:
    """The second trace of a comparison, tied to the first where it replays it.

    Raises:
        TraceError: it replays another trace, or cannot be read.
    """
    other = Trace.open(path)
    source = other.header.get("replay_of")
    if source is None:
        return other
    if source != one.digest:
        raise TraceError(
            "the second trace replays another one than the first",
            where=str(path),
            why=f"it replays {str(source)[:12]}, the first is {one.digest[:12]}",
            fix="name the trace it was made from first",
        )
    return Trace.open(path, one)


def run_diff(arguments: argparse.Namespace) -> int:
    """Run `tandem parity diff`; 1 for FAIL."""
    trace = Trace.open(arguments.trace)
    judged: dict[str, list[LeafError]] = {}
    one, two = Side(trace, judged), Side(open_other(arguments.other, trace), judged)
    found = diff(one, two, progress=True, legal=LegalNoise(one))
    outcome = verdict(found, arguments.trace)
    if arguments.report is not None:
        report.write(arguments.report, found, outcome)
    if arguments.json:
        print(json.dumps({"verdict": outcome.to_json()} | found.to_json()))
    else:
        print(report.summary(found, outcome), end="")
        if arguments.report is not None:
            print(f"report: {arguments.report / 'report.html'}")
    return 1 if outcome.status == "FAIL" else 0


def run_swap(arguments: argparse.Namespace) -> int:
    """Run `tandem parity swap`."""
    check_decision(arguments.decision)
    trace = Trace.open(arguments.trace)
    backend = open_backend(arguments.backend, origin="--backend")
    try:
        found = swap(Side(trace), backend, arguments.decision, progress=True)
    finally:
        backend.close()
    if found is None:
        told = f"no decision flips: backend '{backend.name}' takes every recorded decision as the recording does"
        print(json.dumps({"headline": told, "decision": None}) if arguments.json else told)
        return 0
    if arguments.json:
        print(json.dumps(found.to_json()))
        return 0
    print(found.headline())
    print(f"  {found.flip.verdict or 'flip'}: {found.flip.told()}")
    for record in trace.records:
        if record.id == found.flip.cause:
            print(f"  outside its class before it: record {record.id}: {record.op} {record.place} step {record.step}")
    for record in found.kept:
        print(f"  record {record.id}: {record.op} {record.place} step {record.step}")
    if found.first is not None and not found.minimal:
        print("  not proved to be the smallest set: the runs ended first")
    print(f"  {MEANING}")
    return 0

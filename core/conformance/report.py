"""What a conformance run found, as records, as text and as files."""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tandem.conformance.compare import Measured
from tandem.contract.capabilities import RUN_ON_DEVICE, labelled
from tandem.contract.opspec import OP_TABLE

LEVELS = ("L0", "L1", "L2", "L3")


@dataclass(frozen=True)
class Result:
    """One check of one case.

    Args:
        suite: the level whose suite it belongs to.
        op: contract name, or the part of the backend that is checked at L0 and the engine at L2.
        seconds: time it took.
        failure: what is wrong; None where it holds.
        skipped: why it was not run; None where it was.
        measured: by output, how far a value is from its derivation.
    """

    suite: str
    op: str
    case: str
    check: str
    seconds: float
    failure: str | None = None
    skipped: str | None = None
    measured: dict[str, Measured] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The case string, by which `--case` runs it again."""
        return f"{self.op}/{self.case}/{self.check}"


@dataclass(frozen=True)
class Report:
    """A run of the kit.

    Args:
        backend: name of the backend.
        level: the level that was asked for; a run of it contains the lower ones.
        quick, case: what limited the run; with either no level is claimed.
        results: in the order they were run.
        fingerprint: of the open device.
        contract: version, and the state of the op table.
        batch_invariant: whether the backend claims it.
        speed: per op median microseconds and share of their sum; empty below L3.
        floors: per op the slowest median microseconds that the port states.
        index: of the device.
        verification: how the results came about, ``run on device`` or ``emulated``.
    """

    backend: str
    level: str
    quick: bool
    case: str
    results: list[Result]
    fingerprint: dict[str, str]
    contract: str
    batch_invariant: bool
    speed: dict[str, dict[str, float]] = field(default_factory=dict)
    floors: dict[str, float] = field(default_factory=dict)
    index: int = 0
    verification: str = RUN_ON_DEVICE
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d", time.gmtime()))

    @property
    def failures(self) -> list[Result]:
        """Checks that do not hold."""
        return [result for result in self.results if result.failure is not None]

    @property
    def holds(self) -> bool:
        """Whether something was checked and nothing failed."""
        return not self.failures and any(result.skipped is None for result in self.results)

    @property
    def claim(self) -> str:
        """The highest level up to the one asked for that this run shows, or ``none``, as for quick or partial runs."""
        if self.quick or self.case:
            return "none"
        reached = "none"
        for level in LEVELS[: LEVELS.index(self.level) + 1]:
            suite = [result for result in self.results if result.suite == level]
            if not any(r.skipped is None for r in suite) or any(r.failure is not None for r in suite):
                break
            reached = level
        return reached

    @property
    def shown(self) -> str:
        """The claim as it is shown: ``L1 (emulated)`` where it was not run on a device."""
        return self.claim if self.claim == "none" else labelled(self.claim, self.verification)

    def rerun(self, result: Result) -> str:
        """The command that runs one check again."""
        device = self.backend + (f":{self.index}" if self.index else "")
        level = "" if result.suite in ("L0", "L1") else f" --level {result.suite}"
        return f"tandem conformance --backend {shlex.quote(device)}{level} --case {shlex.quote(result.name)}"

    def worst(self) -> dict[str, dict[str, Measured]]:
        """By op and output, the worst measurement of all cases: the one nearest to its limit."""
        found: dict[str, dict[str, Measured]] = {}
        for result in self.results:
            for output, one in result.measured.items():
                held = found.setdefault(result.op, {})
                if output not in held or _nearness(one) > _nearness(held[output]):
                    held[output] = one
        return found

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        plain = asdict(self)
        for record, result in zip(plain["results"], self.results, strict=True):
            record["name"] = result.name
            if result.failure is not None:
                record["rerun"] = self.rerun(result)
        return plain | {"holds": self.holds, "claim": self.claim, "shown": self.shown, "failed": len(self.failures)}

    def write(self, folder: Path) -> None:
        """``results.json`` and ``report.txt`` in a folder, which is made."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        (folder / "report.txt").write_text("\n".join(page(self)) + "\n", encoding="utf-8")


def _nearness(one: Measured) -> float:
    return one.worst / one.limit if one.limit else one.worst


def summary(report: Report, full: bool = False) -> Iterator[str]:
    """One line a suite, the reasons of what was skipped (in full, or by their first words), and the verdict."""
    for level in LEVELS[: LEVELS.index(report.level) + 1]:
        suite = [result for result in report.results if result.suite == level]
        failed = sum(result.failure is not None for result in suite)
        out = sum(result.skipped is not None for result in suite)
        took = sum(result.seconds for result in suite)
        yield f"{level}  {len(suite) - out - failed} hold, {failed} fail, {out} skipped  ({took:.1f} s)"
    skipped = Counter((r.skipped if full else r.skipped.partition(":")[0]) for r in report.results if r.skipped)
    if skipped:
        yield "skipped: " + ", ".join(f"{count} ({reason})" for reason, count in skipped.most_common())
    limits = [text for text, on in (("quick", report.quick), (f"--case {report.case}", report.case)) if on]
    yield f"level shown: {report.shown}" + (f" (a run with {' and '.join(limits)} shows none)" if limits else "")


def failure_lines(report: Report) -> Iterator[str]:
    """What failed, and how to run each again."""
    for result in report.failures:
        yield f"FAIL {result.name}: {result.failure}"
        yield f"     rerun: {report.rerun(result)}"


def table_rows(report: Report) -> list[list[str]]:
    """Op by op: checks that hold, fail and are skipped, the output nearest to its limit, its worst row and mean."""
    rows = [["op", "hold", "fail", "skip", "worst output", "class", "worst", "mean", "limit", "unit"]]
    worst = report.worst()
    for op in dict.fromkeys(result.op for result in report.results if result.suite == "L1"):
        mine = [result for result in report.results if result.op == op and result.suite == "L1"]
        count = Counter("fail" if r.failure is not None else "skip" if r.skipped is not None else "hold" for r in mine)
        numbers = [str(count[kind]) for kind in ("hold", "fail", "skip")]
        name, one = max(worst.get(op, {"-": None}).items(), key=lambda pair: _nearness(pair[1]) if pair[1] else -1.0)
        cells = ["-"] * 5
        if one is not None:
            cells = [judged(op, name, one), *(f"{x:.3g}" for x in (one.worst, one.mean, one.limit)), one.unit]
        rows.append([op, *numbers, name, *cells])
    return rows


def judged(op: str, output: str, one: Measured) -> str:
    """The class of an output, and the one it is judged by where that is another: ``U(4) as A`` where the sums
    before it have a floor."""
    declared = OP_TABLE[op].classes.get(output.partition(".")[0], "?")
    letter, classes = {"ulp": ("U", "U"), "floor": ("A", "A"), "differ": ("Q", "XSQP")}[one.unit]
    return declared if declared[0] in classes else f"{declared} as {letter}"


def aligned(rows: list[list[str]]) -> Iterator[str]:
    """Rows of cells as columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def page(report: Report) -> Iterator[str]:
    """The report as one page of text."""
    yield f"Conformance of backend '{report.backend}', {report.date}: {report.verification}"
    yield f"contract {report.contract}; batch-invariant: {'claimed' if report.batch_invariant else 'not claimed'}"
    yield "device: " + ", ".join(f"{name} {value}" for name, value in sorted(report.fingerprint.items()))
    yield ""
    yield from summary(report, full=True)
    yield ""
    yield from failure_lines(report)
    if len(rows := table_rows(report)) > 1:
        yield ""
        yield from aligned(rows)
    if report.speed:
        yield ""
        yield from aligned(speed_rows(report))


def speed_rows(report: Report) -> list[list[str]]:
    """Op by op the median time, its share, and the floor that the port states."""
    rows = [["op", "median us", "share", "floor us"]]
    for op, one in sorted(report.speed.items(), key=lambda pair: -pair[1]["median_us"]):
        floor = report.floors.get(op)
        shown = "-" if floor is None else f"{floor:.1f}"
        rows.append([op, f"{one['median_us']:.1f}", f"{one['share']:.1%}", shown])
    return rows

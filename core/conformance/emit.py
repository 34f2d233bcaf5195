"""Writes the capability table of a backend from a run that showed a level."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandem.conformance.compare import Measured
from tandem.conformance.report import Report, judged
from tandem.contract.backend import Backend
from tandem.contract.matrix import cells
from tandem.contract.opspec import table_signature
from tandem.contract.standing import contract_text, sealed, source_hashes
from tandem.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")  # what TOML takes as a key without quotes


def emit(report: Report, backend: Backend, path: Path) -> None:
    """Write the table.

    Raises:
        ConfigError: the run shows no level, because it was quick or partial or because a check fails.
    """
    if report.claim == "none":
        limited = report.quick or report.case
        raise ConfigError(
            "no capability table was written",
            where=str(path),
            why="a quick or partial run shows no level" if limited else "the lowest level does not hold",
            fix="run without --quick and --case" if limited else "repair what the report names",
        )
    path.write_text(sealed("\n".join(_lines(report, backend)) + "\n"), encoding="utf-8")


def static_part(backend: Backend) -> dict[str, Any]:
    """What the table says that no measurement is needed for."""
    return {
        "backend": backend.name,
        "contract": contract_text(),
        "op_table": table_signature(),
        "batch_invariant": backend.caps.batch_invariant,
        "graphs": backend.caps.graphs,
        "formats": sorted(backend.caps.formats),
        "sources": source_hashes(type(backend)),
        "ops": {op: _op(backend, op, cell.kind) for op, cell in cells(backend).items()},
    }


def _op(backend: Backend, op: str, kind: str) -> dict[str, Any]:
    cap = backend.caps.ops.get(op)
    allows = {} if cap is None else {name: sorted(map(str, values)) for name, values in sorted(cap.allows.items())}
    return {"impl": kind} | ({"allows": allows} if allows else {})


def _lines(report: Report, backend: Backend) -> Iterator[str]:
    """The body: plain values first, then tables."""
    fixed = static_part(backend)
    yield f"# Written by `tandem conformance --backend {backend.name} --emit FILE`, sealed by the hash at the end."
    plain = {name: value for name, value in fixed.items() if not isinstance(value, dict)}
    run = {"level": report.claim, "verification": report.verification, "date": report.date}
    for name, value in (plain | run).items():
        yield f"{name} = {_toml(value)}"
    yield from _table("sources", fixed["sources"])
    yield from _table("device", report.fingerprint)
    worst = report.worst()
    for op, record in fixed["ops"].items():
        measured = {output: _measure(op, output, one) for output, one in worst.get(op, {}).items()}
        yield from _table(f"ops.{json.dumps(op)}", record | ({"worst": measured} if measured else {}))
    yield ""
    yield "[file]"  # the seal is a key of the last table


def _measure(op: str, output: str, one: Measured) -> str:
    return f"{judged(op, output, one)}: {one.worst:.3g} of {one.limit:.3g} {one.unit}, mean {one.mean:.3g}"


def _table(name: str, record: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"[{name}]"
    for key, value in record.items():
        yield f"{key if _BARE.fullmatch(key) else json.dumps(key)} = {_toml(value)}"


def _toml(value: Any) -> str:
    """A value as TOML; its strings, numbers and flags are written like those of JSON."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)

"""`tandem backends`: every registration, what it can do, and why not."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator
from typing import Any

from tandem.cli.doctor_text import table
from tandem.contract.backend import Backend
from tandem.contract.capabilities import Capabilities
from tandem.contract.matrix import UNKNOWN, Cell, cells
from tandem.contract.opening import open_registered
from tandem.contract.opspec import CONTRACT_VERSION, OP_TABLE, table_state
from tandem.contract.probing import Probed, probe
from tandem.contract.registry import clash, collect
from tandem.contract.standing import UNVERIFIED, Standing, invariance, standing
from tandem.contract.surface import version_text

SHORT = {"native": "native", "composite": "composite", "unsupported": "unsupported", UNKNOWN: "-"}


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("backends", help="list backends and what they can do")
    parser.add_argument("--matrix", action="store_true", help="every op on every backend")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(handler=run)


def report() -> dict[str, Any]:
    """Every registered backend and the matrix of ops, as JSON values; each one present is opened and closed."""
    known, clashes = collect()
    entries, columns = {}, {}
    for name, registration in known.items():
        entries[name], columns[name] = _describe(probe(registration))
    return {
        "problems": [clash(known[taken.name], taken).to_dict() for taken in clashes],
        "contract": version_text(CONTRACT_VERSION),
        "table": table_state(),
        "backends": entries,
        "matrix": {
            op: {name: {"kind": column[op].kind, "why": column[op].why} for name, column in columns.items()}
            for op in sorted(OP_TABLE)
        },
    }


def _describe(probed: Probed) -> tuple[dict[str, Any], dict[str, Cell]]:
    registration = probed.registration
    entry: dict[str, Any] = {
        "from": registration.origin,
        "target": registration.target,
        "contract": version_text(probed.contract) if probed.contract else "unknown",
        "state": probed.state,
        "reason": probed.probe.reason,
        "facts": dict(probed.probe.facts),
        "traceback": probed.trace,
        "capabilities": None,
    }
    stands, proof = Standing(UNVERIFIED, "it cannot be loaded"), (False, "it cannot be loaded")
    if probed.contract is not None:
        stands, proof = standing(registration.load()), invariance(registration.load())
    entry |= {"level": stands.shown, "level_why": stands.why}
    entry |= {"batch_invariant": proof[0], "batch_invariant_why": proof[1]}
    backend: Backend | None = None
    if probed.probe.present:
        try:
            backend = open_registered(registration, 0, {})
        except Exception as error:  # shown, like a registration that raises
            entry |= {"state": "cannot open", "reason": f"{type(error).__name__}: {error}"}
    if backend is None:
        return entry, dict.fromkeys(OP_TABLE, Cell(UNKNOWN, entry["reason"]))
    try:
        entry |= {"state": "opens", "capabilities": _capabilities(backend.caps)}
        return entry, cells(backend)
    finally:
        backend.close()


def _capabilities(caps: Capabilities) -> dict[str, Any]:
    ops = {
        name: {"impl": cap.impl, "allows": {k: sorted(map(str, v)) for k, v in cap.allows.items()}, "notes": cap.notes}
        for name, cap in sorted(caps.ops.items())
    }
    return {
        "formats": sorted(caps.formats),
        "batch_invariant": caps.batch_invariant,
        "graphs": caps.graphs,
        "notes": caps.notes,
        "verification": caps.verification,
        "ops": ops,
    }


def _list(found: dict[str, Any]) -> Iterator[str]:
    yield from (f"PROBLEM  {p['what']}: {p['where']}; {p['why']}; {p['fix']}" for p in found["problems"])
    yield f"contract {found['contract']}, op table {found['table']}"
    for name, entry in found["backends"].items():
        yield f"\n{name}  {entry['state']}, contract {entry['contract']}, from {entry['from']} ({entry['target']})"
        yield f"  {entry['reason']}"
        yield from (f"  {fact}: {value}" for fact, value in entry["facts"].items())
        yield f"  level {entry['level']}: {entry['level_why']}"
        yield f"  batch-invariant: {_proved(entry)}, {entry['batch_invariant_why']}"
        if entry["traceback"]:
            yield textwrap.indent(entry["traceback"].rstrip(), "  | ")
        caps = entry["capabilities"]
        if caps is None:
            continue
        yield f"  verification: {caps['verification']}"
        yield f"  formats: {', '.join(caps['formats'])}"
        claims = [key.replace("_", "-") for key in ("batch_invariant", "graphs") if caps[key]]
        yield f"  claims: {', '.join(claims) or 'none'}" + (f"; {caps['notes']}" if caps["notes"] else "")
        kinds = [column[name]["kind"] for column in found["matrix"].values()]
        yield "  ops: " + ", ".join(f"{kinds.count(kind)} {kind}" for kind in SHORT if kind in kinds)


def _proved(entry: dict[str, Any]) -> str:
    return "proved" if entry["batch_invariant"] else "unproved"


def _verification(entry: dict[str, Any]) -> str:
    return "-" if entry["capabilities"] is None else str(entry["capabilities"]["verification"])


def _matrix(found: dict[str, Any]) -> Iterator[str]:
    names = list(found["backends"])
    rows = [["op", *names], ["(level)", *(found["backends"][name]["level"] for name in names)]]
    rows.append(["(batch-invariant)", *(_proved(found["backends"][name]) for name in names)])
    rows.append(["(verification)", *(_verification(found["backends"][name]) for name in names)])
    rows += [[op, *(SHORT[column[name]["kind"]] for name in names)] for op, column in found["matrix"].items()]
    yield from table(rows, "")
    yield from (f"{name}, {entry['level']}: {entry['level_why']}" for name, entry in found["backends"].items())
    closed = {name for name, entry in found["backends"].items() if entry["capabilities"] is None}
    yield from (f"- {name}: {found['backends'][name]['reason'].splitlines()[0]}" for name in names if name in closed)
    for op, column in found["matrix"].items():
        for name, cell in column.items():
            if cell["why"] and name not in closed:
                yield f"{op} on {name}, {cell['kind']}: {cell['why']}"


def run(arguments: argparse.Namespace) -> int:
    """Print the list, or the matrix."""
    found = report()
    if arguments.json:
        print(json.dumps(found))
    else:
        print("\n".join(_matrix(found) if arguments.matrix else _list(found)))
    return 0

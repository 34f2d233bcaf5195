"""The report of `tandem doctor` as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any


def text(found: dict[str, Any]) -> str:
    """The whole report."""
    return "\n".join([*_head(found), *_backends(found), *_versions(found["versions"]), *_tail(found)])


def table(rows: list[list[str]], indent: str = "  ") -> list[str]:
    """Lines with columns as wide as their widest cell."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [indent + "  ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _head(found: dict[str, Any]) -> Iterator[str]:
    for problem in found["problems"]:
        yield f"PROBLEM  {problem['what']}"
        yield from (f"         {part}: {problem[part]}" for part in ("where", "why", "fix"))
    for name in ("tandem", "contract", "python", "machine"):
        note = f" (op table {found['table']})" if name == "contract" else ""
        yield f"{name:16} {found[name]}{note}"
    yield "\npackages"
    yield from (f"  {name:16} {version}" for name, version in found["packages"].items())
    loading = found["autoload"]
    for name, told in loading["entry_points"].items():
        yield f"  torch loads      {name} = {told}" + ("" if loading["enabled"] else "  (switched off)")
    if found["environment"]:
        yield "\nenvironment"
    for name, value in found["environment"].items():
        meant = found["misspelt"].get(name)
        note = f"  NOT READ: did you mean {meant}?" if meant else ""
        yield f"  {name}={value}" + (note or ("  not read" if name in found["unknown_variables"] else ""))
    for name in sorted(set(found["misspelt"]) - set(found["environment"])):
        yield f"  {name}  NOT READ: did you mean {found['misspelt'][name]}?"


def _backends(found: dict[str, Any]) -> Iterator[str]:
    yield "\nbackends"
    for name, entry in found["backends"].items():
        yield f"  {name:8} {entry['state']:8} {entry['reason']}  [from {entry['from']}, contract {entry['contract']}]"
        yield from (f"           {fact}: {value}" for fact, value in entry["facts"].items())
        proved = "proved" if entry["batch_invariant"] else "unproved"
        yield f"           batch-invariant: {proved}, {entry['batch_invariant_why']}"
        if entry["traceback"]:
            yield textwrap.indent(entry["traceback"].rstrip(), "           | ")


def _versions(lines: list[dict[str, Any]]) -> Iterator[str]:
    names = list(dict.fromkeys(name for line in lines for name in line["versions"]))
    rows = [["backend", "", *names, "label", "report"]]
    for line in lines:
        cells = [line["versions"].get(name, "-") for name in names]
        rows.append([line["backend"], "here" if line["here"] else "row", *cells, line["label"], line["report"] or "-"])
    yield "\nversions ('tested' needs a report, 'declared' has none)"
    yield from table(rows)


def _tail(found: dict[str, Any]) -> Iterator[str]:
    model = found["model"]
    state = f"present  {model['bytes'] / 2**20:.1f} MiB in {model['path']}" if model["present"] else "absent "
    yield "\nmodel"
    yield f"  {model['origin']:8} {state}  {model['reason']}"
    choice = found["selected"]
    yield f"\nselected ({choice['how']}): {choice.get('backend', 'none')}, {choice['why']}"

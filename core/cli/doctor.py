"""`tandem doctor`: what is installed, what would run, and why not.

This process imports no torch.  What needs it runs in a second one (`tandem.cli.survey`), so that a vendor package
that breaks `import torch` is a finding and not the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from typing import Any

from tandem.cli import autoload, doctor_text
from tandem.config import variables
from tandem.contract.environment import look_alikes, unknown_variables
from tandem.contract.opspec import CONTRACT_VERSION
from tandem.contract.registry import clash, collect
from tandem.contract.versions import UNKNOWN, VersionRow, installed, label_of, matrix
from tandem.errors import TandemError, VersionError

PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "cffi", "deepseek-recipe", "llguidance")
PATIENCE = 300.0  # seconds for the second process; a slow disk needs one for torch


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("doctor", help="show what is installed and what can run")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(handler=run)


def report() -> dict[str, Any]:
    """Everything the command shows, as JSON values."""
    known, clashes = collect()
    problems: list[TandemError] = [clash(known[taken.name], taken) for taken in clashes]
    found = diagnose(problems)
    facts = {name: entry["facts"] for name, entry in found["backends"].items()}
    return {
        "tandem": installed(["tandem-infer"])["tandem-infer"],
        "contract": ".".join(map(str, CONTRACT_VERSION)),
        "table": found["table"],
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "packages": installed(PACKAGES),
        "autoload": {"enabled": autoload.enabled(), "entry_points": autoload.entries()},
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.upper().startswith("TANDEM")},
        "misspelt": look_alikes(os.environ, variables()),
        "unknown_variables": unknown_variables(os.environ, variables()),
        "backends": found["backends"],
        "versions": versions(facts),
        "model": found["model"],
        "selected": found["selected"],
        "problems": [problem.to_dict() for problem in problems],
    }


def diagnose(problems: list[TandemError]) -> dict[str, Any]:
    """The survey; where it fails with vendor packages it is made without them, and the failure is a problem."""
    found, failure = ask({})
    if found is not None:
        return found
    without = {autoload.SWITCH: "0"}
    found = ask(without)[0] if autoload.enabled() and autoload.entries() else None
    if found is None:
        problems.append(_no_survey(failure["why"]))
        return _nothing(failure["why"])
    why = str(failure.get("why"))
    problem = autoload.diagnosis("", why)
    problems.append(type(problem)(problem.what, where=failure.get("where", problem.where), why=why, fix=problem.fix))
    could = found["selected"]
    then = f"{could.get('backend', 'none')}, {could['why']}"
    stopped = f"torch cannot be imported; with {autoload.SWITCH}=0 it could: {then}"
    return found | {"selected": {"how": could["how"], "usable": False, "why": stopped}}


def ask(environment: dict[str, str]) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """(the survey, or None; what went wrong) of a second process with these variables besides the present ones."""
    command = [sys.executable, "-m", "tandem.cli.survey"]
    try:
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return None, {"why": f"the process that imports torch gave no answer in {PATIENCE:.0f} seconds"}
    answer = _answer(done.stdout)
    if answer is None:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return None, {"why": f"the process that imports torch ended with {ended}: {last}"}
    return (None, answer["failed"]) if "failed" in answer else (answer, {})


def _answer(output: str) -> dict[str, Any] | None:
    """The last line that is a JSON object; vendor libraries print before and after it."""
    for line in reversed(output.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def _no_survey(why: str) -> TandemError:
    return VersionError(
        "torch cannot be imported", where=sys.executable, why=why, fix="repair or reinstall torch in this environment"
    )


def _nothing(why: str) -> dict[str, Any]:
    """A survey that could not be made: what is registered, and nothing about it."""
    unknown = {"contract": UNKNOWN, "state": UNKNOWN, "present": False, "facts": {}, "traceback": "", "reason": why}
    unknown |= {"batch_invariant": False, "batch_invariant_why": why}
    known = {name: {"from": r.origin, "target": r.target, **unknown} for name, r in collect()[0].items()}
    model = {"origin": UNKNOWN, "present": False, "path": UNKNOWN, "bytes": 0, "reason": why}
    return {
        "table": UNKNOWN,
        "backends": known,
        "selected": {"how": "none", "usable": False, "why": why},
        "model": model,
    }


def versions(facts: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """What is found for each backend, then the rows of the matrix; each with its label.

    Args:
        facts: of the probes, by backend; systems such as drivers and toolkits are looked up there.
    """
    rows = matrix()
    lines = [_found(name, facts.get(name, {}), rows) for name in dict.fromkeys(row.backend for row in rows)]
    return lines + [
        {"backend": r.backend, "here": False, "versions": r.versions(), "label": r.label, "report": r.report}
        for r in rows
    ]


def _found(backend: str, facts: dict[str, str], rows: list[VersionRow]) -> dict[str, Any]:
    own = [row for row in rows if row.backend == backend]
    packages = installed(dict.fromkeys(name for row in own for name in row.packages))
    system = {name: facts.get(name, UNKNOWN) for row in own for name in row.system}
    label, shown = label_of(backend, packages | system, own)
    return {"backend": backend, "here": True, "versions": packages | system, "label": label, "report": shown}


def run(arguments: argparse.Namespace) -> int:
    """Print the report; exit code 1 when nothing can run."""
    found = report()
    print(json.dumps(found) if arguments.json else doctor_text.text(found))
    return 0 if found["selected"]["usable"] else 1

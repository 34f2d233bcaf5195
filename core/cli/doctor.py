"""`tandem doctor`: what is installed, what would run, and why not."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import warnings
from typing import Any

PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "cffi", "deepseek-recipe")


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("doctor", help="show what is installed and what can run")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(handler=run)


def report() -> dict[str, Any]:
    """Everything the command shows, as JSON values."""
    from tandem.contract.opspec import CONTRACT_VERSION
    from tandem.contract.registry import probe_all, registrations

    known = registrations()
    backends = {
        name: {
            "from": known[name].origin,
            "present": probe.present,
            "reason": probe.reason,
            "facts": dict(probe.facts),
        }
        for name, probe in probe_all().items()
    }
    return {
        "tandem": _version("tandem-infer"),
        "contract": ".".join(map(str, CONTRACT_VERSION)),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "packages": {name: _version(name) for name in PACKAGES},
        "selected": selected(),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith("TANDEM_")},
        "backends": backends,
        "model": shipped(),
    }


def selected() -> dict[str, Any]:
    """The backend that a run would use now, or why there is none."""
    from tandem.contract.registry import ENVIRONMENT, resolve
    from tandem.errors import TandemError

    how = f"{ENVIRONMENT}={os.environ[ENVIRONMENT]}" if os.environ.get(ENVIRONMENT) else "automatic"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            registration, index = resolve()
        probe = registration.load().probe()
    except TandemError as error:
        return {"how": how, "usable": False, "why": str(error)}
    return {"how": how, "usable": probe.present, "backend": f"{registration.name}:{index}", "why": probe.reason}


def shipped() -> dict[str, Any]:
    """The small model that runs where none is named: whether it is complete, its size in bytes and where it lies."""
    from tandem.checkpoint.reader import Checkpoint
    from tandem.checkpoint.shipped import SHIPPED, shipped_model
    from tandem.errors import TandemError
    from tandem.tokenizer.tokenizer import Tokenizer

    found: dict[str, Any] = {"present": False, "path": str(SHIPPED), "bytes": 0}
    try:
        with Checkpoint.open(shipped_model()) as checkpoint:
            checkpoint.validate()
        Tokenizer.load(SHIPPED)
    except TandemError as error:
        return found | {"reason": str(error)}
    size = sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file())
    return found | {"present": True, "bytes": size, "reason": "complete; runs where no model is named"}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def run(arguments: argparse.Namespace) -> int:
    """Print the report; exit code 1 when nothing can run."""
    found = report()
    usable = bool(found["selected"]["usable"])
    if arguments.json:
        print(json.dumps(found))
        return 0 if usable else 1
    for name in ("tandem", "contract", "python", "machine"):
        print(f"{name:16} {found[name]}")
    print("\npackages")
    for name, version in found["packages"].items():
        print(f"  {name:16} {version}")
    print("\nbackends")
    for name, entry in found["backends"].items():
        print(f"  {name:8} {'present' if entry['present'] else 'absent':8} {entry['reason']}  [from {entry['from']}]")
        for fact, value in entry["facts"].items():
            print(f"           {fact}: {value}")
    model = found["model"]
    print("\nmodel")
    state = f"present  {model['bytes'] / 2**20:.1f} MiB in {model['path']}" if model["present"] else "absent "
    print(f"  shipped  {state}  {model['reason']}")
    choice = found["selected"]
    print(f"\nselected ({choice['how']}): {choice.get('backend', 'none')}, {choice['why']}")
    return 0 if usable else 1

"""The part of `tandem doctor` that needs torch; it runs in a process of its own and prints one line of JSON.

What a broken vendor library does to this process, an exception, a crash or a hang, does not reach the doctor.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

FAILED = 3


def survey() -> dict[str, Any]:
    """Backends as they probe, what a run would use, the contract's state and the shipped model."""
    from tandem.contract.opspec import table_state

    return {"table": table_state(), "backends": backends(), "selected": selected(), "model": shipped()}


def backends() -> dict[str, Any]:
    """Every registered backend; where names clash, the first that took one."""
    from tandem.contract.probing import probe
    from tandem.contract.registry import collect

    found = {}
    for name, registration in collect()[0].items():
        probed = probe(registration)
        found[name] = {
            "from": registration.origin,
            "target": registration.target,
            "contract": ".".join(map(str, probed.contract)) if probed.contract else "unknown",
            "state": probed.state,
            "present": probed.probe.present,
            "reason": probed.probe.reason,
            "facts": dict(probed.probe.facts),
            "traceback": probed.trace,
        }
    return found


def selected() -> dict[str, Any]:
    """The backend that a run would use now, or why there is none."""
    from tandem.contract.environment import BACKEND
    from tandem.contract.registry import resolve
    from tandem.errors import TandemError

    how = f"{BACKEND}={os.environ[BACKEND]}" if os.environ.get(BACKEND) else "automatic"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            registration, index = resolve()
        probe = registration.load().probe()
    except TandemError as error:
        return {"how": how, "usable": False, "why": str(error)}
    except Exception as error:  # a plug-in may raise anything
        return {"how": how, "usable": False, "why": f"{type(error).__name__}: {error}"}
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


def main() -> int:
    """Print the survey, or the exception that kept torch from being imported."""
    try:
        import torch  # noqa: F401
    except BaseException as error:  # whatever a vendor package raises
        from tandem.cli.autoload import explain

        told = explain(error)
        failure = told.to_dict() if told is not None else {"why": f"{type(error).__name__}: {error}"}
        print(json.dumps({"failed": failure}))
        return FAILED
    print(json.dumps(survey()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

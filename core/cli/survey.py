"""The part of `tandem doctor` that needs torch; it runs in a process of its own and prints one line of JSON.

What a broken vendor library does to this process, an exception, a crash or a hang, does not reach the doctor.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

FAILED = 3


def survey() -> dict[str, Any]:
    """Backends as they probe, what a run would use, the contract's state and the model."""
    from tandem.contract.opspec import table_state

    return {"table": table_state(), "backends": backends(), "selected": selected(), "model": model()}


def backends() -> dict[str, Any]:
    """Every registered backend; where names clash, the first that took one."""
    from tandem.contract.probing import probe
    from tandem.contract.registry import collect
    from tandem.contract.standing import invariance

    found = {}
    for name, registration in collect()[0].items():
        probed = probe(registration)
        proved, why = (False, "it cannot be loaded") if probed.contract is None else invariance(registration.load())
        found[name] = {
            "from": registration.origin,
            "target": registration.target,
            "contract": ".".join(map(str, probed.contract)) if probed.contract else "unknown",
            "state": probed.state,
            "present": probed.probe.present,
            "reason": probed.probe.reason,
            "facts": dict(probed.probe.facts),
            "batch_invariant": proved,
            "batch_invariant_why": why,
            "traceback": probed.trace,
        }
    return found


def selected() -> dict[str, Any]:
    """The backend that a run would use now, or why there is none."""
    from tandem.contract.environment import BACKEND
    from tandem.contract.registry import resolve
    from tandem.errors import TandemError

    stopped = composite()
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
    if stopped:
        return {"how": how, "usable": False, "why": stopped}
    return {"how": how, "usable": probe.present, "backend": f"{registration.name}:{index}", "why": probe.reason}


def model() -> dict[str, Any]:
    """The model that runs where a command names none: whether it is complete, its size in bytes and where it lies.

    ``origin`` is ``shipped``, or ``named`` where TANDEM_MODEL_PATH names one.
    """
    from tandem.checkpoint.reader import Checkpoint
    from tandem.checkpoint.shipped import SHIPPED, shipped_model
    from tandem.config import load_config
    from tandem.errors import TandemError
    from tandem.tokenizer.tokenizer import Tokenizer

    found: dict[str, Any] = {"origin": "shipped", "present": False, "path": str(SHIPPED), "bytes": 0}
    try:
        named = load_config().model.path
        if named is not None:
            found |= {"origin": "named", "path": named}
        path = Path(named) if named is not None else shipped_model()
        with Checkpoint.open(path) as checkpoint:
            checkpoint.validate()
        Tokenizer.load(path)
    except TandemError as error:
        return found | {"reason": str(error)}
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return found | {"present": True, "bytes": size, "reason": "complete; runs where no model is named"}


def composite() -> str:
    """Why TANDEM_COMPOSITE would stop every model; empty where it would not."""
    from tandem.contract.plan import composite_ops
    from tandem.errors import TandemError

    try:
        composite_ops(os.environ)
    except TandemError as error:
        return str(error)
    return ""


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

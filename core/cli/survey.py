"""The part of `tandem doctor` that loads torch or its libraries; it runs in a process of its own and prints one line
of JSON.

What a broken vendor library does to this process, an exception, a crash or a hang, does not reach the doctor.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from tandem.cli import autoload
from tandem.contract.environment import COMPOSITE

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
    if not os.environ.get(COMPOSITE):
        return ""  # what checks it imports every op, and torch with them
    from tandem.contract.plan import composite_ops
    from tandem.errors import TandemError

    try:
        composite_ops(os.environ)
    except TandemError as error:
        return str(error)
    return ""


def try_torch() -> None:
    """Raise what keeps torch from being imported.

    Running torch's Python takes longer than all the rest.  It is done where vendor packages are loaded with it, and
    where torch's libraries do not load, because the import may look for them in more places and its error is the one
    that counts.  Elsewhere that they load is enough.
    """
    if (autoload.enabled() and autoload.entries()) or not _libraries_load():
        import torch  # noqa: F401


def _libraries_load() -> bool:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        ctypes.CDLL(str(Path(spec.origin).parent / "lib" / "libtorch_python.so"))
    except OSError:
        return False
    return True


def main() -> int:
    """Print the survey, or the exception that kept torch from being imported."""
    try:
        try_torch()
    except BaseException as error:  # whatever a vendor package raises
        told = autoload.explain(error)
        failure = told.to_dict() if told is not None else {"why": f"{type(error).__name__}: {error}"}
        print(json.dumps({"failed": failure}))
        return FAILED
    print(json.dumps(survey()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

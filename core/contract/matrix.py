"""What each backend brings for each op, read from open backends."""

from __future__ import annotations

import os
from dataclasses import dataclass

import tandem.ops  # noqa: F401  (declares every op)
from tandem.contract.backend import Backend
from tandem.contract.environment import COMPOSITE as VARIABLE
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import composite_ops

NATIVE, COMPOSITE, UNSUPPORTED, UNKNOWN = "native", "composite", "unsupported", "unknown"


@dataclass(frozen=True, slots=True)
class Cell:
    """One op on one backend.

    Args:
        kind: ``native`` (own implementation), ``composite``, ``unsupported``, or ``unknown`` where it is not open.
        why: the reason of the last two; for the others what they are restricted to, or that the environment made it
            a composite, or empty.
    """

    kind: str
    why: str = ""


def cells(backend: Backend) -> dict[str, Cell]:
    """Every op of the contract on an open backend, as a plan in this environment would bind it.

    Raises:
        ConfigError: TANDEM_COMPOSITE names an op that does not exist.
    """
    named = composite_ops(os.environ)
    return {name: _cell(backend, name, named) for name in sorted(OP_TABLE)}


def _cell(backend: Backend, op: str, named: frozenset[str]) -> Cell:
    cap = backend.caps.ops.get(op)
    if cap is not None and cap.impl == "absent":
        return Cell(UNSUPPORTED, cap.notes or "the backend declares it absent")
    allows = {} if cap is None else cap.allows
    only = "; ".join(f"{name}: {', '.join(sorted(map(str, values)))}" for name, values in sorted(allows.items()))
    own = backend.implementation(op) is not None
    if own and op not in named:
        return Cell(NATIVE, only)
    for part in OP_TABLE[op].parts:
        if part in OP_TABLE:
            found = _cell(backend, part, named)
            if found.kind == UNSUPPORTED:
                return Cell(UNSUPPORTED, f"its part {part}: {found.why}")
    return Cell(COMPOSITE, f"{VARIABLE} names it" if own else only)

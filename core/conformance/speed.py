"""How long each op takes, and the floors that a port states for itself.

Times are of the cases, whose sizes are those of tests: they compare a port with itself, not devices with each other.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tandem.ops  # noqa: F401  (declares every op)
from tandem.conformance.checks import Found, Skipped
from tandem.conformance.claims import attributes
from tandem.conformance.compare import Mismatch
from tandem.conformance.stage import Stage
from tandem.contract.backend import Backend
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan
from tandem.contract.standing import package_folder
from tandem.errors import ConfigError, OpUnsupported

FLOORS = "floors.json"
REPEATS, QUICK_REPEATS = 15, 5
SLOWER = 1.10  # a median beyond this times the stated one is a failure


def median_us(plan: Plan, op: str, repeats: int) -> float | None:
    """Median microseconds of the op's largest plain case, the queue drained; None where the op cannot be bound."""
    spec = OP_TABLE[op]
    case = next((c for c in spec.cases if c.name.endswith("-T33")), spec.cases[0])
    stage = Stage(plan, spec, case)
    try:
        function = plan.bind(op, f"speed of {op}", **attributes(op, stage.data))
    except OpUnsupported:
        return None
    args = stage.arguments()
    times = []
    for _ in range(repeats + 1):  # the first one warms up
        plan.backend.synchronize()
        start = time.perf_counter()
        function(**args)
        plan.backend.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:]) * 1e6


def measure(backend: Backend, quick: bool) -> dict[str, dict[str, float]]:
    """Median microseconds of every op and its share of their sum."""
    plan = Plan(backend)
    found = {op: median_us(plan, op, QUICK_REPEATS if quick else REPEATS) for op in sorted(OP_TABLE)}
    times = {op: value for op, value in found.items() if value is not None}
    total = sum(times.values())
    return {op: {"median_us": value, "share": value / total} for op, value in times.items()}


def stated_floors(backend: Backend) -> dict[str, float]:
    """What the port states in ``floors.json`` beside its code: op -> median microseconds; empty without the file.

    Raises:
        ConfigError: the file is not an object of ops and positive numbers.
    """
    path = package_folder(type(backend)) / FLOORS
    if not path.is_file():
        return {}
    try:
        stated: Any = json.loads(path.read_text(encoding="utf-8"))
        return {op: _positive(op, value) for op, value in dict(stated).items()}
    except (ValueError, TypeError) as error:
        raise _bad(path, str(error)) from error


def _positive(op: str, value: Any) -> float:
    if op not in OP_TABLE or isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"'{op}': {value!r} is not an op with a positive number of microseconds")
    return float(value)


def _bad(path: Path, why: str) -> ConfigError:
    return ConfigError(
        "the floors of a port cannot be read",
        where=str(path),
        why=why,
        fix='write {"linear": 120.0}: ops and the median microseconds that the port promises',
    )


def floor_jobs(backend: Backend) -> Iterator[tuple[str, Callable[[], Found]]]:
    """(op, check) for every stated floor; without any, one check that says so."""
    floors = stated_floors(backend)
    if not floors:
        yield "speed", _none_stated
    for op, limit in floors.items():
        yield op, _Floor(backend, op, limit).check


def _none_stated() -> Found:
    raise Skipped(f"the port states no floors ({FLOORS} beside its code), so L3 cannot be claimed")


class _Floor:
    """The floor of one op."""

    def __init__(self, backend: Backend, op: str, limit: float) -> None:
        self._backend, self._op, self._limit = backend, op, limit

    def check(self) -> Found:
        """Raise Mismatch where the op is slower than stated by more than a tenth."""
        median = median_us(Plan(self._backend), self._op, REPEATS)
        if median is None:
            raise Mismatch("a floor is stated for an op that cannot be bound")
        if median > SLOWER * self._limit:
            raise Mismatch(f"median {median:.1f} us, stated {self._limit:.1f} us; {SLOWER:.0%} of it is allowed")
        return {}

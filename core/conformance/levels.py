"""The suites of the levels, as checks to be run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from tandem.conformance import boot
from tandem.conformance.checks import Found
from tandem.conformance.engine_harness import EngineHarness
from tandem.conformance.engine_suite import checks as engine_checks
from tandem.conformance.jobs import Job, op_jobs
from tandem.conformance.report import LEVELS
from tandem.conformance.speed import floor_jobs
from tandem.contract.backend import Backend
from tandem.contract.plan import Plan


def every_job(backend: Backend, level: str, quick: bool) -> Iterator[Job]:
    """Every check of the suites up to a level."""
    suites = {"L0": _boot, "L1": _ops, "L2": _engine, "L3": _speed}
    for name in LEVELS[: LEVELS.index(level) + 1]:
        yield from suites[name](backend, quick)


def _boot(backend: Backend, quick: bool) -> Iterator[Job]:
    for part, case, check in boot.checks():
        yield Job("L0", part, case, "boot", functools.partial(_nothing_measured, check, backend))


def _ops(backend: Backend, quick: bool) -> Iterator[Job]:
    yield from op_jobs(Plan(backend), quick)


def _engine(backend: Backend, quick: bool) -> Iterator[Job]:
    harness = _Harness(backend)
    names = [name for name, _ in engine_checks(quick)]
    for name, check in engine_checks(quick):
        yield Job("L2", "engine", name, "engine", functools.partial(harness.run, check, name == names[-1]))


def _speed(backend: Backend, quick: bool) -> Iterator[Job]:
    for op, check in floor_jobs(backend):
        yield Job("L3", op, "floor", "speed", check)


def _nothing_measured(check: Callable[[Backend], None], backend: Backend) -> Found:
    check(backend)
    return {}


class _Harness:
    """The engine harness, entered by the first check of the suite that runs and left by the last."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._harness: EngineHarness | None = None

    def run(self, check: Callable[[EngineHarness], None], last: bool) -> Found:
        """One check of the engine suite."""
        if self._harness is None:
            index = self._backend.device.index or 0
            reopen = functools.partial(type(self._backend).open, index, {})
            self._harness = EngineHarness(self._backend, reopen).__enter__()
        try:
            check(self._harness)
        finally:
            if last:
                self._harness.__exit__(None, None, None)
                self._harness = None
        return {}

"""Checks that are still to be run, with their names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tandem.ops  # noqa: F401  (declares every op)
from tandem.conformance.checks import CHECKS, Found, Skipped
from tandem.conformance.chunks import CHUNKS
from tandem.conformance.claims import attributes, claimed, missing
from tandem.conformance.compare import Mismatch
from tandem.conformance.stage import Stage
from tandem.contract.opspec import OP_TABLE, Case, OpSpec
from tandem.contract.plan import Plan
from tandem.errors import OpUnsupported

# Row counts that a quick run leaves out.
_NOT_QUICK = ("-T2", "-T15", "-T16", "-T33")


@dataclass(frozen=True)
class Job:
    """One check that is still to be run."""

    suite: str
    op: str
    case: str
    check: str
    run: Callable[[], Found]

    @property
    def name(self) -> str:
        """The case string."""
        return f"{self.op}/{self.case}/{self.check}"


def op_jobs(plan: Plan, quick: bool) -> Iterator[Job]:
    """Level L1: all checks of all cases of all ops, the cuts of sequences, and that every claim has a case."""
    for op in sorted(OP_TABLE):
        for case in OP_TABLE[op].cases:
            if not (quick and case.name.endswith(_NOT_QUICK)):
                yield from case_jobs(plan, OP_TABLE[op], case, quick)
        for name, case_name, check in CHUNKS:
            if name == op:
                yield Job("L1", op, case_name, "rows", functools.partial(_chunks, plan, check))
        yield Job("L1", op, "claims", "cases", functools.partial(_claims, plan, op))


def _chunks(plan: Plan, check: Callable[[Plan], None]) -> Found:
    if not plan.backend.caps.batch_invariant:
        raise Skipped("the backend does not claim batch invariance")
    check(plan)
    return {}


def _claims(plan: Plan, op: str) -> Found:
    if not claimed(plan.backend, op):
        raise Mismatch("the backend claims nothing of the op, and the level asks for every op")
    untested = list(missing(plan.backend, op))
    if untested:
        raise Mismatch(f"the kit has no case for what the backend claims: {'; '.join(untested)}")
    return {}


def case_jobs(plan: Plan, spec: OpSpec, case: Case, quick: bool = False) -> Iterator[Job]:
    """All checks of one case; they share its first run."""
    shared = _Shared(plan, spec, case, quick)
    for name in CHECKS:
        yield Job("L1", spec.name, case.name, name, functools.partial(shared.check, name))


class _Shared:
    """The stage of a case, made when its first check runs and dropped after the last."""

    def __init__(self, plan: Plan, spec: OpSpec, case: Case, quick: bool) -> None:
        self._plan, self._spec, self._case, self._quick = plan, spec, case, quick
        self._stage: Stage | None = None

    def check(self, name: str) -> Found:
        """Run a check on the stage."""
        if self._stage is None:
            self._stage = self._open()
        try:
            return CHECKS[name](self._stage)
        finally:
            if name == list(CHECKS)[-1]:
                self._stage = None

    def _open(self) -> Stage:
        stage, op = Stage(self._plan, self._spec, self._case, self._quick), self._spec.name
        try:
            self._plan.bind(op, f"conformance of {op}/{self._case.name}", **attributes(op, stage.data))
        except OpUnsupported as refused:
            raise Skipped(f"not claimed: {refused.why}") from refused
        return stage

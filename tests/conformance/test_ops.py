"""Every check of the kit on every case of every op, on every implementation."""

from __future__ import annotations

import functools

import pytest
from support.runner import implementations, plan_of

from tandem.conformance.checks import CHECKS
from tandem.conformance.chunks import CHUNKS
from tandem.conformance.derive.base import load_all
from tandem.conformance.jobs import Job, op_jobs
from tandem.conformance.kit import run_job
from tandem.conformance.memory import WRITES, written
from tandem.conformance.report import Result
from tandem.conformance.rows import COPIES, ROW_ARGUMENTS
from tandem.contract.opspec import OP_TABLE


@functools.cache
def jobs(implementation: str) -> dict[tuple[str, str], list[Job]]:
    """Checks by op and case, in the order they have to run."""
    found: dict[tuple[str, str], list[Job]] = {}
    for job in op_jobs(plan_of(implementation), quick=False):
        found.setdefault((job.op, job.case), []).append(job)
    return found


CASES = sorted(jobs(implementations()[0]))


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize(("op", "case"), CASES, ids=[f"{op}-{case}" for op, case in CASES])
def test_op(op: str, case: str, implementation: str) -> None:
    results = [run_job(job) for job in jobs(implementation)[op, case]]
    failures = [f"{result.name}: {result.failure}" for result in results if result.failure is not None]
    assert not failures, "\n".join(failures)
    assert {result.check for result in results if result.skipped is None} >= _wanted(results, op, implementation)


def _wanted(results: list[Result], op: str, implementation: str) -> set[str]:
    """The checks that must not be skipped."""
    if len(results) == 1:
        return set()
    wanted = set(CHECKS) if plan_of(implementation).backend.caps.batch_invariant else set(CHECKS) - {"rows"}
    return wanted - ({"sentinel"} if op not in WRITES else set()) - ({"rows"} if op not in ROW_ARGUMENTS else set())


def test_every_op_has_a_derivation() -> None:
    assert set(load_all()) == set(OP_TABLE)


def test_rows_of_every_op_are_accounted_for() -> None:
    """Ops whose rows are not independent look at neighbours or sort, and have chunks, or copy."""
    groups = [set(ROW_ARGUMENTS), {op for op, _, _ in CHUNKS}, set(COPIES)]
    assert set.union(*groups) == set(OP_TABLE)
    assert sum(map(len, groups)) == len(OP_TABLE)


def test_what_ops_write_is_what_they_do_not_return() -> None:
    """By the first case of each op: outputs by name, less what the call returns."""
    plan = plan_of(implementations()[0])
    for op, spec in OP_TABLE.items():
        case = spec.cases[0]
        returned = _returned(op, case.name, plan)
        assert list(spec.classes)[returned:] == list(written(op)) or not written(op), op
        assert bool(written(op)) == (returned < len(spec.classes)), op


def _returned(op: str, case: str, plan: object) -> int:
    from support.runner import arguments, find_case

    result = plan.bind(op, "test")(**arguments(find_case(op, case), implementations()[0]))
    return 0 if result is None else len(result) if isinstance(result, tuple) else 1

"""The conformance cases of one op, for tests that run them on a backend of their own."""

from __future__ import annotations

from tandem.conformance.jobs import Job, case_jobs, op_jobs
from tandem.conformance.kit import run_job
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan

CHECKS = ("values", "poison")


def check_smallest(plan: Plan, op: str) -> None:
    """Of one row where there is such a case, else the first that is written down."""
    spec = OP_TABLE[op]
    case = next((c for c in spec.cases if c.name.endswith("-T1")), spec.cases[0])
    jobs = [job for job in case_jobs(plan, spec, case, quick=True) if job.check in CHECKS]
    assert _run(jobs) == list(CHECKS)


def check_all(plan: Plan, op: str) -> None:
    """Every case and check of an op; of a composite, on the layouts of the backend."""
    assert _run([job for job in op_jobs(plan, quick=False) if job.op == op])


def _run(jobs: list[Job]) -> list[str]:
    """The checks that ran; all of them hold."""
    results = [run_job(job) for job in jobs]
    assert {r.name: r.failure for r in results if r.failure is not None} == {}
    return [r.check for r in results if r.skipped is None]

"""The conformance suite on the emulated device: a quick part of each op in the fast run, all of it in the slow one."""

from __future__ import annotations

import pytest

from tandem.backends.cuda.backend import CudaBackend
from tandem.conformance.jobs import case_jobs, op_jobs
from tandem.conformance.kit import run_job
from tandem.contract.backend import Backend
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan

CHECKS = ("values", "poison")


@pytest.fixture(scope="module")
def backend() -> Backend:
    return CudaBackend.open(0, {})


def own_ops() -> list[str]:
    opened = CudaBackend.open(0, {})
    return [op for op in sorted(OP_TABLE) if opened.implementation(op) is not None]


def test_the_device_is_emulated_and_says_so(backend: Backend) -> None:
    assert backend.caps.verification == "emulated"
    assert backend.fingerprint()["verification"].startswith("emulated")
    assert not backend.caps.graphs


@pytest.mark.parametrize("op", own_ops())
def test_smallest_case(backend: Backend, op: str) -> None:
    """Of one row where there is such a case, else the first that is written down."""
    spec = OP_TABLE[op]
    case = next((c for c in spec.cases if c.name.endswith("-T1")), spec.cases[0])
    results = [run_job(job) for job in case_jobs(Plan(backend), spec, case, quick=True) if job.check in CHECKS]
    assert [r.check for r in results if r.skipped is None] == list(CHECKS)
    assert {r.name: r.failure for r in results if r.failure is not None} == {}


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(OP_TABLE))
def test_all_of_l1(backend: Backend, op: str) -> None:
    """Every case and check of an op, composites on the emulated device's layouts among them."""
    results = [run_job(job) for job in op_jobs(Plan(backend), quick=False) if job.op == op]
    assert any(r.skipped is None for r in results)
    assert {r.name: r.failure for r in results if r.failure is not None} == {}

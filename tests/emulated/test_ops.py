"""The conformance suite on the emulated device: a quick part of each op in the fast run, all of it in the slow one."""

from __future__ import annotations

import pytest
from support.op_suite import check_all, check_smallest

from tandem.backends.cuda.backend import CudaBackend
from tandem.contract.backend import Backend
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan


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
    check_smallest(Plan(backend), op)


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(OP_TABLE))
def test_all_of_l1(backend: Backend, op: str) -> None:
    check_all(Plan(backend), op)

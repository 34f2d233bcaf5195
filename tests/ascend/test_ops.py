"""The conformance suite on the emulated device: a quick part of each op in the fast run, all of it in the slow one."""

from __future__ import annotations

import pytest
from support import no_rows, op_suite

from tandem.backends.ascend import table
from tandem.contract.backend import Backend
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan

OWN = sorted(table.implementations())


def test_the_device_is_emulated_and_says_so(ascend: Backend) -> None:
    assert ascend.caps.verification == "emulated" and not ascend.caps.graphs
    facts = ascend.fingerprint()
    assert facts["verification"] == "emulated: Ascend C kernels on the host" and facts["device"] == "none"
    assert facts["cores"] == "2 cube, 4 vector" and facts["buffers in KiB"] == "ub 248 l1 512 l0a 64 l0b 64 l0c 256"


def test_records_are_of_what_the_backend_brings(ascend: Backend) -> None:
    assert sorted(ascend.caps.ops) == OWN
    for op in OP_TABLE:
        assert (ascend.implementation(op) is not None) == (op in OWN)


@pytest.mark.parametrize("op", OWN)
def test_smallest_case(ascend: Backend, op: str) -> None:
    op_suite.check_smallest(Plan(ascend), op)


@pytest.mark.parametrize("op", no_rows.OPS)
def test_a_call_without_rows(ascend: Backend, op: str) -> None:
    no_rows.check(Plan(ascend), op)


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(OP_TABLE))
def test_all_of_l1(ascend: Backend, op: str) -> None:
    op_suite.check_all(Plan(ascend), op)

"""Arrays that kernels of backend 'cuda' do not take."""

from __future__ import annotations

import pytest
from support.wrong_arguments import check

from tandem.backends.cuda.table import triton_ops
from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(open_backend("cuda"))


@pytest.mark.parametrize("op", sorted(triton_ops()))
def test_arrays_that_lie_elsewhere(plan: Plan, op: str) -> None:
    check(plan, op)

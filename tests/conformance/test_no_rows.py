"""Calls without rows on backend 'cpu'."""

from __future__ import annotations

import pytest
from support.no_rows import OPS, check

from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(open_backend("cpu"))


@pytest.mark.parametrize("op", OPS)
def test_a_call_without_rows(plan: Plan, op: str) -> None:
    check(plan, op)

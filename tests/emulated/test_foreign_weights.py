"""Weights of another backend on backend 'cuda'."""

from __future__ import annotations

import pytest
from support.foreign_weights import OPS, check

from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(open_backend("cuda"))


@pytest.mark.parametrize("op", OPS)
def test_a_weight_of_another_backend_is_refused(plan: Plan, op: str) -> None:
    check(plan, op)

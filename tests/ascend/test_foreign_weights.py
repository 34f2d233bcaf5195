"""Weights of another backend on backend 'ascend'."""

from __future__ import annotations

import pytest
from support.foreign_weights import OPS, check

from tandem.contract.backend import Backend
from tandem.contract.plan import Plan


@pytest.fixture(scope="module")
def plan(ascend: Backend) -> Plan:
    return Plan(ascend)


@pytest.mark.parametrize("op", OPS)
def test_a_weight_of_another_backend_is_refused(plan: Plan, op: str) -> None:
    check(plan, op)

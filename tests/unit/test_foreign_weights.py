"""Weights of another backend on backend 'cpu', with and without its native kernels."""

from __future__ import annotations

import pytest
import torch
from support.foreign_weights import OPS, check

from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend
from tandem.contract.types import QFormat, QTensor
from tandem.errors import LayoutError


@pytest.fixture(scope="module", params=[True, False], ids=["native", "composites"])
def plan(request: pytest.FixtureRequest) -> Plan:
    return Plan(open_backend("cpu", {"native": request.param}))


def test_the_ops_that_take_weights_are_found() -> None:
    assert {"embed", "linear", "grouped_linear", "engram_gather", "hc_mix", "hc_step", "moe_block"} <= set(OPS)


@pytest.mark.parametrize("op", OPS)
def test_a_weight_of_another_backend_is_refused(plan: Plan, op: str) -> None:
    check(plan, op)


def test_an_activation_of_another_backend_is_refused(plan: Plan) -> None:
    codes, scale = torch.zeros(2, 32, dtype=torch.uint8), torch.zeros(2, 1, dtype=torch.uint8)
    foreign = QTensor(codes, scale, QFormat.MXFP8, (2, 32), "elsewhere.rows")
    for convert in (plan.backend.from_canonical, plan.backend.to_canonical):
        with pytest.raises(LayoutError, match="it is mxfp8 in layout 'elsewhere.rows', the op reads mxfp8 in 'canon"):
            convert(foreign)

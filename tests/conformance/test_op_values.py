"""Every op on every case against an independent derivation, within its class, on every implementation."""

from __future__ import annotations

import pytest
from support.runner import SAMPLING, arguments, call, each_case, implementations

from tandem.conformance.calls import leaves
from tandem.conformance.derive.base import View, load_all
from tandem.contract.opspec import OP_TABLE, Case, OpSpec
from tandem.contract.types import QTensor

DERIVATIONS = load_all()
CASES = [pytest.param(spec, case, id=f"{spec.name}-{case.name}") for spec, case in each_case()]


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize(("spec", "case"), CASES)
def test_values(spec: OpSpec, case: Case, implementation: str) -> None:
    got = call(spec.name, implementation, arguments(case, implementation))
    before = View(case.build(0))
    checks = DERIVATIONS[spec.name](before, got)
    tensors = leaves(got)
    whole = {name: value for name, value in got.items() if isinstance(value, QTensor)}
    assert {name.partition(".")[0] for name in checks} == set(got)
    for name, check in checks.items():
        check.check(whole.get(name, tensors.get(name)), f"{spec.name} {name}")


def test_every_op_has_a_derivation() -> None:
    assert set(DERIVATIONS) == set(OP_TABLE) - SAMPLING

"""The plans that Ascend launchers state for the roofline table, against what their kernels do in emulation.

Launches are stated one by one with the kind and number of their blocks.  Bytes of global memory: never less than the
distinct ones that a kernel touches, never more than all its accesses together.  Those of UB and L1 are all accesses.
"""

from __future__ import annotations

import pytest
from support.ascend_counts import Counts, counted

from tandem.backends.ascend import table
from tandem.backends.ascend.plan import EMULATED, Plan
from tandem.contract.backend import Backend
from tandem.contract.cases import materialise
from tandem.contract.opspec import OP_TABLE, Case
from tools.kernels.roofline_ascend import planned

PLANS, _ = planned()
SLACK, SMALL = 1.1, 128  # what a kernel touches of indices and flags in global memory beyond its statement
BUFFER_SLACK, BUFFER_SMALL = 1.35, 512  # the same of UB and L1
UNUSED = 2.5  # of a case up to a half of rows, columns or slots is padding, which a statement by shapes does not know


def chosen(op: str) -> list[Case]:
    """Cases of seventeen rows, or the first."""
    cases = OP_TABLE[op].cases
    return [case for case in cases if case.name.endswith("-T17")] or cases[:1]


@pytest.mark.parametrize("op", sorted(PLANS))
def test_a_plan_is_what_the_kernel_does(op: str, ascend: Backend) -> None:
    for case in chosen(op):
        arguments = materialise(case.build(0), ascend, 0)
        stated = PLANS[op](EMULATED, **arguments)
        with counted() as launches:
            table.implementations()[op](**arguments)
        assert [(plan.kind, plan.blocks) for plan in stated] == [(one.kind, one.blocks) for one in launches]
        for number, (plan, one) in enumerate(zip(stated, launches, strict=True)):
            check(plan, one, f"{case.name}, launch {number}: {plan} stated, {one} counted")


def check(plan: Plan, one: Counts, told: str) -> None:
    for least, stated, most in (
        (one.distinct_read, plan.read, one.read),
        (one.distinct_written, plan.written, one.written),
    ):
        assert least <= SLACK * stated + SMALL, told
        assert stated <= UNUSED * most + SMALL, told
    for stated, counts in ((plan.ub, one.ub), (plan.l1, one.l1)):
        assert counts <= BUFFER_SLACK * stated + BUFFER_SMALL, told
        assert stated <= UNUSED * counts + BUFFER_SMALL, told

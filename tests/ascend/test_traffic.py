"""The plans that Ascend launchers state for the roofline table, against what their kernels do in emulation.

Launches are stated one by one with the kind and number of their blocks.  Bytes of global memory: never less than the
distinct ones that a kernel touches, never more than all its accesses together.  Those of UB and L1 are all accesses.
"""

from __future__ import annotations

import pytest
from support.ascend_counts import counted

from tandem.backends.ascend import table
from tandem.backends.ascend.plan import EMULATED
from tandem.contract.backend import Backend
from tandem.contract.cases import materialise
from tandem.contract.opspec import OP_TABLE, Case
from tools.kernels.roofline_ascend import planned

PLANS, _ = planned()
SLACK = 1.25  # what a kernel touches of indices and flags beyond its statement
SMALL = 4096  # bytes of partial results and tables, which are nothing at official shapes
UNUSED = 2.5  # of a case up to a half of rows, columns or slots is padding, which a statement by shapes does not know


def chosen(op: str) -> Case:
    """A case of seventeen rows where there is one."""
    cases = OP_TABLE[op].cases
    return next((case for case in cases if case.name.endswith("-T17")), cases[0])


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(PLANS))
def test_a_plan_is_what_the_kernel_does(op: str, ascend: Backend) -> None:
    function = table.implementations()[op]
    arguments = materialise(chosen(op).build(0), ascend, 0)
    stated = PLANS[op](EMULATED, **arguments)
    with counted() as launches:
        function(**arguments)
    assert [(plan.kind, plan.blocks) for plan in stated] == [(one.kind, one.blocks) for one in launches]
    for number, (plan, one) in enumerate(zip(stated, launches, strict=True)):
        told = f"launch {number}: {plan} stated, {one} counted"
        for least, bytes_stated, most in (
            (one.distinct_read, plan.read, one.read),
            (one.distinct_written, plan.written, one.written),
            (one.ub, plan.ub, one.ub),
            (one.l1, plan.l1, one.l1),
        ):
            assert least <= SLACK * bytes_stated + SMALL, told
            assert bytes_stated <= UNUSED * most + 64, told

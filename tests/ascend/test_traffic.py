"""The plans that Ascend launchers state for the roofline table, against what their kernels do in emulation.

Launches are stated one by one with the kind and number of their blocks.  Bytes of global memory: never less than the
distinct ones that a kernel touches, never more than all its accesses together.  Those of UB and L1 are all accesses.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.ascend_counts import counted

from tandem.backends.ascend import table
from tandem.backends.ascend.plan import EMULATED
from tandem.contract.backend import Backend
from tandem.contract.cases import materialise
from tandem.contract.opspec import OP_TABLE, Case
from tandem.contract.types import KVCache
from tools.kernels.filled import Held, fill
from tools.kernels.floors import size
from tools.kernels.roofline_ascend import planned
from tools.kernels.workloads import Maker, Phase, Workload, workloads

PLANS, _ = planned()
SLACK, SMALL = 1.1, 128  # what a kernel touches of indices and flags in global memory beyond its statement
BUFFER_SLACK, BUFFER_SMALL = 1.35, 512  # the same of UB and L1
UNUSED = 2.5  # of a case up to a half of rows, columns or slots is padding, which a statement by shapes does not know
# Filters of a draw end when they have found their cut, and drafts count that there are; stated is what most can need.
AT_MOST = {"sample", "process_logits", "draft_sample", "spec_verify", "aux.verify_rows"}
PHASES = (Phase("decode", 17, 17, 2048), Phase("prefill", 130, 1, 2048))
ROOM = 100 << 20  # bytes of arguments; the largest weights and vocabularies are beyond it
OF_REQUESTS = {"engram_context", "compress_update"}  # their rows must be those of requests, and random ones are not


def chosen(op: str) -> list[Case]:
    """Cases of seventeen rows, or the first."""
    cases = OP_TABLE[op].cases
    return [case for case in cases if case.name.endswith("-T17")] or cases[:1]


@pytest.mark.parametrize("op", sorted(PLANS))
def test_a_plan_is_what_the_kernel_does(op: str, ascend: Backend) -> None:
    for case in chosen(op):
        check(op, case.name, materialise(case.build(0), ascend, 0))


def fitting(op: str, phase: Phase) -> list[Workload]:
    """Official calls of an op whose arguments are not too large."""
    found = []
    for workload in (one for one in workloads() if one.op == op):
        arguments = workload.build(Maker(Held()), phase).values()
        needed = sum(size(one.data if isinstance(one, KVCache) else one) for one in arguments)
        if needed <= ROOM:
            found.append(workload)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
@pytest.mark.parametrize("op", sorted(set(PLANS) - OF_REQUESTS))
def test_a_plan_holds_at_official_widths(op: str, phase: Phase, ascend: Backend) -> None:
    for workload in fitting(op, phase):
        check(op, workload.name, fill(workload, phase, ascend))


def check(op: str, name: str, arguments: dict[str, Any]) -> None:
    stated = PLANS[op](EMULATED, **arguments)
    with counted() as launches:
        table.implementations()[op](**arguments)
    assert [(plan.kind, plan.blocks) for plan in stated] == [(one.kind, one.blocks) for one in launches]
    for number, (plan, one) in enumerate(zip(stated, launches, strict=True)):
        told = f"{name}, launch {number}: {plan} stated, {one} counted"
        if op != "engram_gather":  # whose table lies on the host: what comes over the bus is not stated
            assert one.distinct_read <= SLACK * plan.read + SMALL, told
        assert one.distinct_written <= SLACK * plan.written + SMALL, told
        assert one.ub <= BUFFER_SLACK * plan.ub + BUFFER_SMALL, told
        assert one.l1 <= BUFFER_SLACK * plan.l1 + BUFFER_SMALL, told
        if op not in AT_MOST:
            assert plan.read <= UNUSED * one.read + SMALL, told
            assert plan.written <= UNUSED * one.written + SMALL, told
            assert plan.ub <= UNUSED * one.ub + BUFFER_SMALL, told
            assert plan.l1 <= UNUSED * one.l1 + BUFFER_SMALL, told

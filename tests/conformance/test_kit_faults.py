"""The kit itself: every fault of the table is caught, by the check that should, and nothing else is blamed."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
import support.kit_faults_numbers
import support.kit_faults_places  # noqa: F401  (both fill the table)
from support.kit_faults import FAULTS, Fault, FaultyBackend

from tandem.conformance.checks import CHECKS
from tandem.conformance.jobs import case_jobs
from tandem.conformance.kit import run, run_job
from tandem.conformance.report import Result
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan


def results(wrong: Fault | None, op: str, cases: str) -> list[Result]:
    """All checks of the cases of an op whose case string holds ``cases``."""
    plan = Plan(FaultyBackend(wrong))
    chosen = [case for case in OP_TABLE[op].cases if cases in f"{op}/{case.name}"]
    assert chosen, f"no case of {op} is named {cases}"
    return [run_job(job) for case in chosen for job in case_jobs(plan, OP_TABLE[op], case)]


@functools.cache
def sound(op: str, cases: str) -> tuple[str, ...]:
    """Checks that fail without any fault."""
    return tuple(f"{r.name}: {r.failure}" for r in results(None, op, cases) if r.failure is not None)


@pytest.mark.parametrize("wrong", FAULTS, ids=str)
def test_the_fault_is_caught_and_named(wrong: Fault) -> None:
    assert sound(wrong.op, wrong.cases) == ()
    failed = [result for result in results(wrong, wrong.op, wrong.cases) if result.failure is not None]
    blamed = {result.check for result in failed}
    assert set(wrong.must) <= blamed <= {*wrong.must, *wrong.may}, [f"{r.name}: {r.failure}" for r in failed]
    assert not [r.failure for r in failed if str(r.failure).startswith("raised")], "a wrong result, not an accident"


def test_a_run_names_the_op_and_the_case() -> None:
    """The whole way, once: the run's failures, its filter and the verdict."""
    wrong = next(fault for fault in FAULTS if fault.op == "hc_post" and fault.must == ("values",))
    report = run(FaultyBackend(wrong), "L1", case="hc_post/random-T2")
    assert [result.name for result in report.failures] == ["hc_post/random-T2/values"] and not report.holds
    assert run(FaultyBackend(None), "L1", case="hc_post/random-T2").failures == []


def test_the_table_is_wide() -> None:
    assert len(FAULTS) >= 28 and len({str(fault) for fault in FAULTS}) == len(FAULTS)
    assert {check for fault in FAULTS for check in fault.must} == set(CHECKS), "every check catches something"
    assert max(Counter(fault.op for fault in FAULTS).values()) <= 5
    assert len({fault.op for fault in FAULTS}) >= 28

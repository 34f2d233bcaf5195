"""The kit itself: every fault of the table is caught, by the check that should, and nothing else is blamed."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
import support.kit_faults_drafts
import support.kit_faults_numbers
import support.kit_faults_places
import support.kit_faults_sizes  # noqa: F401  (all four fill the table)
from support.kit_faults import FAULTS, Fault, FaultyBackend

from tandem.conformance.checks import CHECKS
from tandem.conformance.kit import run
from tandem.conformance.report import Result


def failures(wrong: Fault | None, cases: str) -> list[Result]:
    """What a run of the kit over the matching cases finds."""
    report = run(FaultyBackend(wrong), "L1", case=cases)
    assert report.holds == (not report.failures) and report.results
    return report.failures


@functools.cache
def sound(cases: str) -> list[str]:
    """Checks that fail without any fault."""
    return [f"{result.name}: {result.failure}" for result in failures(None, cases)]


@pytest.mark.parametrize("wrong", FAULTS, ids=str)
def test_the_fault_is_caught_and_named(wrong: Fault) -> None:
    assert sound(wrong.cases) == []
    found = failures(wrong, wrong.cases)
    told = [f"{result.name}: {result.failure}" for result in found]
    assert {result.op for result in found} == {wrong.op}, told
    assert set(wrong.must) <= {result.check for result in found} <= {*wrong.must, *wrong.may}, told
    assert not any(str(result.failure).startswith("raised") for result in found), "a wrong result, not an accident"


def test_the_table_is_wide() -> None:
    assert len(FAULTS) >= 28 and len({str(fault) for fault in FAULTS}) == len(FAULTS)
    assert {check for fault in FAULTS for check in fault.must} == set(CHECKS), "every check catches something"
    assert max(Counter(fault.op for fault in FAULTS).values()) <= 5
    assert len({fault.op for fault in FAULTS}) >= 28

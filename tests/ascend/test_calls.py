"""Threads and forks that call ops of the emulated backend 'ascend'."""

from __future__ import annotations

from support.emulated_calls import check_fork, check_memory, check_threads

from tandem.contract.backend import Backend
from tandem.contract.plan import Plan


def test_threads_get_what_they_would_alone(ascend: Backend) -> None:
    check_threads(Plan(ascend), times=60)


def test_a_child_that_was_forked_within_a_call_goes_on(ascend: Backend) -> None:
    check_fork(Plan(ascend))


def test_calls_leave_no_memory_behind(ascend: Backend) -> None:
    """Sets of readers of a launch, which once stayed for a million of them: 250 bytes a call."""
    check_memory(Plan(ascend), "linear", times=4000, most=500_000)

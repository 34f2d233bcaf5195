"""Threads and forks that call ops of the emulated backend 'cuda'."""

from __future__ import annotations

from support.emulated_calls import check_fork, check_threads

from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend


def test_threads_get_what_they_would_alone() -> None:
    check_threads(Plan(open_backend("cuda")), times=12)


def test_a_child_that_was_forked_within_a_call_goes_on() -> None:
    check_fork(Plan(open_backend("cuda")))

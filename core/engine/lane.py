"""Where calls run that must keep their order: at once in the caller's thread, or in one thread of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class Lane(Protocol):
    """Runs calls one after another."""

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Queue a call; what it raises is raised by the future's ``result``."""

    def close(self) -> None:
        """Finish what is queued."""


class InlineLane:
    """Runs each call before `submit` returns."""

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """See `Lane`."""
        future: Future[Result] = Future()
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """See `Lane`."""


class ThreadLane:
    """Runs calls in a thread of its own, of the given name."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """See `Lane`."""
        return self._pool.submit(call)

    def close(self) -> None:
        """See `Lane`."""
        self._pool.shutdown()

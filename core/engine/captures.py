"""Calls that repeat: run as usual when they are met first, captured when met again, replayed from then on.

The first run lets a device compile and allocate what it needs.  What a call reads must stay at the same addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from tandem.contract.backend import Backend, Graph

Result = TypeVar("Result")
MOST = 64  # of one kind; the one that was used longest ago makes room


@dataclass(slots=True)
class _Known:
    """A call that was met; it keeps alive what a graph reads.  Its graph and result come with the second meeting."""

    function: Callable[[], Any]
    graph: Graph | None = None
    result: Any = None


class Captures:
    """Runs calls of one kind.

    Args:
        backend: captures.
        enabled: whether it can; otherwise every call runs as usual.
    """

    def __init__(self, backend: Backend, enabled: bool) -> None:
        self._backend, self.enabled = backend, enabled
        self._known: dict[Hashable, _Known] = {}  # in the order of use
        self.captured = self.replayed = 0

    def run(self, key: Hashable, function: Callable[[], Result]) -> Result:
        """What ``function`` returns; arrays in it hold until another call of this kind is replayed.

        Args:
            key: equal for calls that do the same with the same arrays.
            function: makes the calls.
        """
        if not self.enabled:
            return function()
        known = self._known.pop(key, None)
        if known is None:
            result = function()
            if len(self._known) >= MOST:
                self._backend.synchronize()  # it may be running still
                del self._known[next(iter(self._known))]
            self._known[key] = _Known(function)
            return result
        self._known[key] = known
        if known.graph is None:
            known.graph = self._capture(known)
        known.graph.replay()
        self.replayed += 1
        repeated: Result = known.result
        return repeated

    def repeats(self, key: Hashable) -> bool:
        """Whether the next call of the key is replayed and returns the same arrays as the last."""
        known = self._known.get(key)
        return known is not None and known.graph is not None

    def _capture(self, known: _Known) -> Graph:
        def call() -> None:
            known.result = known.function()

        graph = self._backend.capture(call)
        self.captured += 1
        return graph

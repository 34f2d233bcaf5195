"""Requests that wait for a slot, and moments at which requests end."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from time import monotonic

from tandem.engine.intake import PendingRequest
from tandem.structured.compiler import wait_for_any


class WaitingRequests:
    """Requests without a slot, in the order of (priority, arrival); those that miss something are passed over.

    Args:
        ready: whether nothing but a slot is missing.
    """

    def __init__(self, ready: Callable[[PendingRequest], bool]) -> None:
        self._ready = ready
        self._known: dict[int, PendingRequest] = {}
        self._held: dict[int, PendingRequest] = {}
        self._order: list[tuple[int, int]] = []  # a heap of (priority, id); ids that left are dropped when met

    def __len__(self) -> int:
        return len(self._known)

    def get(self, request_id: int) -> PendingRequest | None:
        """A request that waits; None if it does not."""
        return self._known.get(request_id)

    def add(self, pending: PendingRequest) -> None:
        """Let a request wait."""
        request_id = pending.live.request_id
        self._known[request_id] = pending
        if self._ready(pending):
            heapq.heappush(self._order, (pending.live.params.priority, request_id))
        else:
            self._held[request_id] = pending

    def remove(self, pending: PendingRequest) -> None:
        """Take a request out."""
        request_id = pending.live.request_id
        del self._known[request_id]
        self._held.pop(request_id, None)
        if not self._known:
            self._order.clear()

    def first(self) -> PendingRequest | None:
        """The request that is next for a slot; it stays here until it is removed."""
        for request_id in [key for key, pending in self._held.items() if self._ready(pending)]:
            pending = self._held.pop(request_id)
            heapq.heappush(self._order, (pending.live.params.priority, request_id))
        while self._order:
            found = self._known.get(self._order[0][1])
            if found is not None:
                return found
            heapq.heappop(self._order)
        return None

    def wait(self, seconds: float) -> None:
        """Wait, at most so long, until the grammar of one that misses it is ready."""
        wait_for_any([held.ticket for held in self._held.values() if held.ticket is not None], seconds)


class Deadlines:
    """When requests end that have a deadline; the clock is `time.monotonic`.

    Args:
        known: whether a request has not ended yet.
    """

    def __init__(self, known: Callable[[int], bool]) -> None:
        self._known = known
        self._order: list[tuple[float, int]] = []
        self._most = 64  # entries at which those of ended requests are dropped

    def add(self, request_id: int, moment: float | None) -> None:
        """Note the deadline of a request, in seconds of the clock; None for no end."""
        if moment is None:
            return
        heapq.heappush(self._order, (moment, request_id))
        if len(self._order) > self._most:
            self._order = [entry for entry in self._order if self._known(entry[1])]
            heapq.heapify(self._order)
            self._most = max(64, 2 * len(self._order))

    def due(self) -> Iterator[int]:
        """Take out the requests whose deadline has passed."""
        while self._order and self._order[0][0] <= monotonic():
            yield heapq.heappop(self._order)[1]

"""Copies between host and device through a ring of pinned memory, in the order of the device's queue.

A queue copies and marks places in its order, whoever makes it, so the ring is tested with one that runs late.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

Tensor = torch.Tensor
Array = npt.NDArray[Any]
ALIGNMENT = 256


class Mark(Protocol):
    """A place in a queue."""

    def query(self) -> bool:
        """Whether the queue has passed it."""

    def synchronize(self) -> None:
        """Wait until it has."""


class Queue(Protocol):
    """Copies in order."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Queue a copy."""

    def mark(self) -> Mark:
        """The place behind all that is queued."""


class _Held(NamedTuple):
    start: int
    end: int
    release: Callable[[], object]


class Ring:
    """Pieces of one array of bytes, handed out in a circle; a piece is waited for before its bytes are given again.

    Args:
        memory: uint8 [size].
    """

    def __init__(self, memory: Tensor) -> None:
        self._memory, self._next = memory, 0
        self._held: deque[_Held] = deque()

    def take(self, count: int) -> tuple[Tensor, int, int]:
        """(``count`` free bytes, their first and their end), ``count`` at most the size of the ring."""
        size = self._memory.numel()
        start = self._next
        if start + max(count, 1) > size:
            self._free(start, size)
            start = 0
        end = min(-(-(start + max(count, 1)) // ALIGNMENT) * ALIGNMENT, size)
        self._free(start, end)
        self._next = end
        return self._memory[start : start + count], start, end

    def hold(self, start: int, end: int, release: Callable[[], object]) -> None:
        """Keep a piece that was taken; ``release`` waits until its bytes are not needed."""
        self._held.append(_Held(start, end, release))

    def _free(self, start: int, end: int) -> None:
        """Pieces are held in the order of the circle, so the oldest are the ones in the way."""
        while self._held and self._held[0].start < end and self._held[0].end > start:
            self._held.popleft().release()


class Download:
    """A copy to the host under way; `result` may be called from several threads.

    Args:
        view: pinned memory that the copy goes to, with the type and shape of the result.
        mark: the place behind the copy.
    """

    def __init__(self, view: Tensor, mark: Mark) -> None:
        self._view: Tensor | None = view
        self._mark = mark
        self._array: Array = np.empty(0)
        self._lock = threading.Lock()

    def ready(self) -> bool:
        """Whether the copy has arrived."""
        return self._view is None or self._mark.query()

    def result(self) -> Array:
        """Wait, and move the result out of the ring."""
        with self._lock:
            if self._view is not None:
                self._mark.synchronize()
                self._array = self._view.numpy().copy()
                self._view = None
            return self._array


class Staging:
    """Copies both ways.

    Args:
        queue: the device's.
        pinned: makes pinned memory, uint8 [count].
        size: bytes of the ring of each direction.
    """

    def __init__(self, queue: Queue, pinned: Callable[[int], Tensor], size: int) -> None:
        self._queue, self._pinned, self._size = queue, pinned, size
        self._up, self._down = Ring(pinned(size)), Ring(pinned(size))

    def upload(self, array: Array, target: Tensor) -> None:
        """Copy ``array`` into a device array of its shape; ``array`` may change on return."""
        source = np.ascontiguousarray(array).reshape(-1)
        flat = target.view(-1)
        step = max(self._size // 4 // source.itemsize, 1)
        for start in range(0, source.size, step):
            piece = source[start : start + step]
            memory, first, end = self._up.take(piece.nbytes)
            staged = memory.view(flat.dtype)
            staged.numpy()[:] = piece
            self._queue.copy(flat[start : start + piece.size], staged)
            self._up.hold(first, end, self._queue.mark().synchronize)

    def download(self, source: Tensor) -> Download:
        """Start a copy of a contiguous device array."""
        count = source.numel() * source.element_size()
        if count > self._size:
            view = self._pinned(count).view(source.dtype).view(source.shape)
            self._queue.copy(view, source)
            return Download(view, self._queue.mark())
        memory, first, end = self._down.take(count)
        view = memory.view(source.dtype).view(source.shape)
        self._queue.copy(view, source)
        found = Download(view, self._queue.mark())
        self._down.hold(first, end, found.result)
        return found

"""Memory of the large arrays that steps make and drop, in huge pages.

The heap keeps small objects that live on between large arrays that come and go, cannot put together what is free around
them, and grows to twice what a prompt needs.  Here large arrays lie among themselves, and a step finds the pages of the
one before it.
"""

from __future__ import annotations

import math
import weakref
from bisect import bisect_left
from collections import deque
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch._C import _len_torch_dispatch_stack

from tandem.backends.cpu.memory import ALIGNMENT, mapped

Tensor = torch.Tensor
LEAST = 64 << 10  # bytes; smaller arrays are the heap's
REGION = 256 << 20  # bytes of addresses; what of them was never used takes no memory


class _Place(NamedTuple):
    """Bytes of a region, from start to stop."""

    region: int
    start: int
    stop: int


class Pool:
    """Gives each array the first place that is free.

    Args:
        region: bytes of addresses that it grows by, at least.
    """

    def __init__(self, region: int) -> None:
        self._region = region
        self._regions: dict[int, npt.NDArray[np.uint8]] = {}
        self._free: list[_Place] = []  # in order, none beside another
        # Any thread may drop an array, at any moment: places wait here until the next array is made.
        self._given: deque[_Place] = deque()
        self._made = 0
        self._lock = Lock()

    @property
    def regions(self) -> list[npt.NDArray[np.uint8]]:
        """The memory held."""
        return list(self._regions.values())

    @property
    def nbytes(self) -> int:
        """Bytes of addresses held."""
        return sum(region.nbytes for region in self.regions)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised array.

        Raises:
            OSError: there is not that much.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        with self._lock:
            self._settle()
            place = self._take(max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT)
            held = self._regions[place.region][place.start : place.start + nbytes]
        weakref.finalize(held, self._given.append, place).atexit = False
        return torch.from_numpy(held).view(dtype).view(shape)

    def give_back(self) -> None:
        """Let the system have regions that hold no array."""
        with self._lock:
            self._settle()
            for place in list(self._free):
                if place.stop - place.start == self._regions[place.region].nbytes:
                    self._free.remove(place)
                    del self._regions[place.region]

    def _take(self, size: int) -> _Place:
        for index, (region, start, stop) in enumerate(self._free):
            if stop - start >= size:
                self._free[index : index + 1] = [_Place(region, start + size, stop)] if stop - start > size else []
                return _Place(region, start, start + size)
        memory = mapped(max(size, self._region))
        region, self._made = self._made, self._made + 1
        self._regions[region] = memory
        if memory.nbytes > size:
            self._free.append(_Place(region, size, memory.nbytes))
        return _Place(region, 0, size)

    def _settle(self) -> None:
        """Make free what was given, joined with what is free beside it."""
        while self._given:
            region, start, stop = place = self._given.popleft()
            index = bisect_left(self._free, place)
            first, last = index, index
            if index < len(self._free) and self._free[index][:2] == (region, stop):
                stop, last = self._free[index].stop, index + 1
            if index and (self._free[index - 1].region, self._free[index - 1].stop) == (region, start):
                start, first = self._free[index - 1].start, index - 1
            self._free[first:last] = [_Place(region, start, stop)]


_pool = Pool(REGION)
give_back = _pool.give_back


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised array that a launcher returns or works with.

    Who watches what torch makes in this thread sees every array: a recording brings the memory, a check fills it.
    """
    # Torch's public question for such a watcher is answered for all threads together.
    if math.prod(shape) * dtype.itemsize < LEAST or _len_torch_dispatch_stack():
        return torch.empty(shape, dtype=dtype)
    return _pool.empty(shape, dtype)

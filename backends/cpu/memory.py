"""Memory in huge pages: reading weights at the machine's speed meets a new page every few hundred nanoseconds else."""

from __future__ import annotations

import math
import mmap

import numpy as np
import numpy.typing as npt
import torch

Tensor = torch.Tensor
LARGE = 4 << 20  # bytes from which an array of its own gets huge pages
CHUNK = 64 << 20  # bytes of memory that weights share
OPEN = 3  # regions of weights that are held for what fits
HUGE = 2 << 20  # bytes of a huge page
ALIGNMENT = 64  # bytes, a cache line


def mapped(nbytes: int) -> npt.NDArray[np.uint8]:
    """Anonymous memory, in huge pages where the system has them; nothing is resident before it is written.

    Raises:
        OSError: there is not that much.
    """
    # In whole huge pages: nothing else is aligned to them.  Private: what may be shared gets them only where an
    # administrator has asked for that.
    memory = mmap.mmap(-1, -(-nbytes // HUGE) * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without them
            pass
    return np.frombuffer(memory, dtype=np.uint8)[:nbytes]


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
    """An uninitialised array; None where it is too small for huge pages.

    Raises:
        OSError, OverflowError: there is not that much.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < LARGE:
        return None
    return torch.from_numpy(mapped(nbytes)).view(dtype).view(shape)


class Arena:
    """Copies of arrays, one after the other in large regions.

    A region is given back with the last of its arrays, but for the last few that have room: an array that does not fit
    there leaves it to smaller ones.
    """

    def __init__(self) -> None:
        self._open: list[tuple[npt.NDArray[np.uint8], int]] = []  # regions and what of them is used

    def copy(self, source: Tensor) -> Tensor:
        """A contiguous copy."""
        return self.empty(tuple(source.shape), source.dtype).copy_(source)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised array."""
        region = self._take(math.prod(shape) * dtype.itemsize)
        return torch.from_numpy(region).view(dtype).view(shape)

    def _take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        index = next((i for i, (region, used) in enumerate(self._open) if used + nbytes <= region.nbytes), None)
        if index is None:
            index, self._open = 0, [(mapped(max(CHUNK, nbytes)), 0), *self._open][:OPEN]
        region, used = self._open[index]
        self._open[index] = region, used + -(-nbytes // ALIGNMENT) * ALIGNMENT
        return region[used : used + nbytes]

"""Reference-counted ids of cache blocks.

A pool knows nothing of tokens or layers: it hands out block ids and counts how many owners each has.
An engine has two: one for the blocks of the main and index caches, one for the blocks of the window caches.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tandem.errors import CapacityError, TandemError

Ids = npt.NDArray[np.int32]


class AccountingError(TandemError):
    """Blocks, slots or steps were used against the books: a defect of the caller, never of a request."""


class BlockPool:
    """Block ids ``0 .. num_blocks - 1``, each free or held by one or more owners.

    Args:
        num_blocks: blocks in the pool, at least one.

    Raises:
        CapacityError: the pool would be empty.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise CapacityError(
                "a block pool needs at least one block",
                where="BlockPool",
                why=f"num_blocks is {num_blocks}",
                fix="give the cache more memory or more blocks",
            )
        self._refs = np.zeros(num_blocks, dtype=np.int32)
        # A stack whose top is the next id to hand out: the lowest ids first, recently freed ids again soon.
        self._stack = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)
        self._free = num_blocks

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, free or not."""
        return len(self._refs)

    @property
    def num_free(self) -> int:
        """Blocks without an owner."""
        return self._free

    @property
    def ref_counts(self) -> Ids:
        """A copy of the number of owners of each block, int32 [num_blocks]."""
        return self._refs.copy()

    def can_allocate(self, count: int) -> bool:
        """Whether ``allocate(count)`` would succeed now."""
        return count <= self._free

    def allocate(self, count: int) -> Ids:
        """Take ``count`` free blocks, one owner each.

        Returns:
            int32 [count], the ids; nothing is taken when the call fails.

        Raises:
            CapacityError: fewer than ``count`` blocks are free.
        """
        if count < 0:
            raise _misuse("a negative number of blocks was asked for", f"count is {count}")
        if count > self._free:
            raise CapacityError(
                "the block pool is exhausted",
                where="BlockPool.allocate",
                why=f"{count} blocks were asked for, {self._free} of {self.num_blocks} are free",
                fix="ask can_allocate first, release blocks, or use a larger pool",
            )
        ids = self._stack[self._free - count : self._free][::-1].copy()
        self._free -= count
        self._refs[ids] = 1
        return ids

    def share(self, ids: npt.ArrayLike) -> None:
        """Add one owner to each block (int [n], held blocks; an id may repeat).

        Raises:
            AccountingError: an id is out of range or free; nothing changes.
        """
        held = self._checked(ids)
        if held.size and self._refs[held].min() < 1:
            raise _misuse(
                "a free block was shared", f"ids {held[self._refs[held] < 1].tolist()} have no owner"
            )
        np.add.at(self._refs, held, 1)

    def release(self, ids: npt.ArrayLike) -> Ids:
        """Remove one owner from each block (int [n]; an id may repeat) and free those left without one.

        Returns:
            int32, the ids that became free.

        Raises:
            AccountingError: an id is out of range or has fewer owners than were removed; nothing changes.
        """
        held = self._checked(ids)
        unique, times = np.unique(held, return_counts=True)
        left = self._refs[unique] - times
        if left.size and left.min() < 0:
            raise _misuse("a block was released twice", f"ids {unique[left < 0].tolist()} have no such owner")
        self._refs[unique] = left
        freed: Ids = unique[left == 0]
        self._stack[self._free : self._free + len(freed)] = freed
        self._free += len(freed)
        return freed

    def _checked(self, ids: npt.ArrayLike) -> Ids:
        found = np.atleast_1d(np.asarray(ids))
        if found.size == 0:
            return found.astype(np.int32)
        if found.dtype.kind not in "iu" or found.min() < 0 or found.max() >= self.num_blocks:
            raise _misuse(
                "a block id is not of this pool",
                f"ids {found.tolist()}, the pool has 0 .. {self.num_blocks - 1}",
            )
        return found.astype(np.int32)


def _misuse(what: str, why: str) -> AccountingError:
    return AccountingError(
        what, where="BlockPool", why=why, fix="report this: the owner of the blocks has lost count"
    )

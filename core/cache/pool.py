"""Reference-counted ids of cache blocks.

A pool knows nothing of tokens or layers: it hands out block ids and counts how many owners each has.  One
owner may be a cache, which gives a block up whenever another one needs it; a block that only the cache holds
is *idle*, and counts as available.
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
        self._kept = np.zeros(num_blocks, dtype=np.bool_)
        self._idle = 0
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
    def num_idle(self) -> int:
        """Blocks whose only owner is the cache."""
        return self._idle

    @property
    def num_available(self) -> int:
        """Blocks that are free, or will be as soon as the cache is asked for them."""
        return self._free + self._idle

    @property
    def kept(self) -> Ids:
        """Ids that the cache owns, ascending int32."""
        return np.flatnonzero(self._kept).astype(np.int32)

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
        woken = held[self._kept[held] & (self._refs[held] == 1)]
        self._idle -= len(np.unique(woken))
        np.add.at(self._refs, held, 1)

    def release(self, ids: npt.ArrayLike) -> Ids:
        """Remove one owner from each block (int [n]; an id may repeat) and free those left without one.

        Returns:
            int32, the ids that became free.

        Raises:
            AccountingError: an id is out of range or has fewer owners than were removed; nothing changes.
        """
        held = self._checked(ids)
        unique, times = _counted(held)
        left = self._refs[unique] - times
        least = self._kept[unique].astype(np.int32)  # the cache's own count is taken back by `drop` only
        if (left < least).any():
            raise _misuse("a block was released twice", f"ids {unique[left < least].tolist()} have no such owner")
        self._idle += int(np.count_nonzero(self._kept[unique] & (left == 1)))
        self._refs[unique] = left
        freed: Ids = unique[left == 0]
        self._put_back(freed)
        return freed

    def keep(self, ids: npt.ArrayLike) -> None:
        """Make the cache one more owner of each block (int [n], distinct held blocks).

        Raises:
            AccountingError: an id is out of range or free, or the cache owns it already; nothing changes.
        """
        held = self._checked(ids)
        if self._kept[held].any():
            raise _misuse("a block was cached twice", f"ids {held[self._kept[held]].tolist()}")
        if held.size and self._refs[held].min() < 1:
            raise _misuse("a free block was cached", f"ids {held[self._refs[held] < 1].tolist()} have no owner")
        self._refs[held] += 1
        self._kept[held] = True

    def drop(self, ids: npt.ArrayLike) -> Ids:
        """End the cache's ownership of each block (int [n], distinct) and free those left without an owner.

        Returns:
            int32, the ids that became free.

        Raises:
            AccountingError: the cache does not own an id; nothing changes.
        """
        held = self._checked(ids)
        if not self._kept[held].all():
            raise _misuse("a block that is not cached was dropped", f"ids {held[~self._kept[held]].tolist()}")
        freed: Ids = held[self._refs[held] == 1]
        self._idle -= len(freed)
        self._kept[held] = False
        self._refs[held] -= 1
        self._put_back(freed)
        return freed

    def idle(self, ids: npt.ArrayLike) -> int:
        """How many of these blocks (int [n], distinct) only the cache holds."""
        return int(np.count_nonzero(self.are_idle(ids)))

    def is_idle(self, block: int) -> bool:
        """Whether only the cache holds a block."""
        return bool(self._kept[block] and self._refs[block] == 1)

    def are_idle(self, ids: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """bool [n], which of these blocks (int [n]) only the cache holds."""
        held = self._checked(ids)
        found: npt.NDArray[np.bool_] = self._kept[held] & (self._refs[held] == 1)
        return found

    def _put_back(self, freed: Ids) -> None:
        self._stack[self._free : self._free + len(freed)] = freed
        self._free += len(freed)

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


def _counted(ids: Ids) -> tuple[Ids, npt.NDArray[np.integer] | int]:
    """Distinct ids, ascending, and how often each occurs."""
    ordered = np.sort(ids)
    if (ordered[1:] == ordered[:-1]).any():
        return np.unique(ids, return_counts=True)
    return ordered, 1


def _misuse(what: str, why: str) -> AccountingError:
    return AccountingError(
        what, where="BlockPool", why=why, fix="report this: the owner of the blocks has lost count"
    )

"""Blocks for rows: the pools and the tables of an engine, kept in step with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tandem.cache.hashing import PLAIN, Identity
from tandem.cache.pool import BlockPool
from tandem.cache.tables import BlockTable, Int32, WindowTable, blocks_for

if TYPE_CHECKING:
    from tandem.cache.prefix import Match, PrefixCache


class Pools(NamedTuple):
    """The two pools of an engine."""

    main: BlockPool
    window: BlockPool


class Tables(NamedTuple):
    """The two tables of an engine."""

    main: BlockTable
    window: WindowTable


class CacheSpace:
    """Takes blocks from both pools for growing requests and gives them back.

    Blocks that only the prefix cache holds count as free everywhere: they are given up when they are needed.

    Args:
        pools, tables: main and window; nobody else but the prefix cache changes the tables.
        prefix: blocks of finished work that new requests may share; None for none.
    """

    def __init__(self, pools: Pools, tables: Tables, prefix: PrefixCache | None = None) -> None:
        self._pools, self._tables, self._prefix = pools, tables, prefix

    # -- shared prefixes -----------------------------------------------------------------------

    def match(self, tokens: Int32, identity: Identity = PLAIN, limit: int | None = None) -> Match | None:
        """What a request without blocks could take from the prefix cache; see `PrefixCache.match`."""
        return None if self._prefix is None else self._prefix.match(tokens, identity, limit)

    def adopt(self, slot: int, match: Match | None) -> None:
        """Give an empty slot what `match` found just before, which may be nothing.

        Called for every request that starts, so that its blocks are cached as they are completed.
        """
        if self._prefix is not None and match is not None:
            self._prefix.adopt(slot, match)

    def commit(self, slots: Int32, lengths: Int32) -> None:
        """Settle tokens whose rows are final: cache the blocks they complete, then free what has passed.

        Args:
            slots: int32 [n], distinct.
            lengths: int32 [n], committed tokens of each; their ids are in the request table.
        """
        if self._prefix is not None:
            self._prefix.note(slots, lengths)
        self.trim(slots, lengths)
        if self._prefix is not None:
            self._prefix.settle()

    # -- blocks --------------------------------------------------------------------------------

    def reach(self, slot: int, spare: tuple[int, int] = (0, 0), match: Match | None = None) -> int:
        """First position a slot cannot serve with its blocks and all available but ``spare`` (main, window).

        With ``match``: an empty slot that would adopt it first.
        """
        main, window = self._tables
        left = [max(0, p.num_available - n) for p, n in zip(self._pools, spare, strict=True)]
        if match is None or not match.length:
            return min(main.reach(slot, left[0]), window.reach(slot, left[1]))
        more = [
            max(0, n - pool.idle(ids))
            for n, pool, ids in zip(left, self._pools, (match.blocks, match.pages), strict=True)
        ]
        first = match.window_start // window.block_size + len(match.pages)
        return min((len(match.blocks) + more[0]) * main.block_size, (first + more[1]) * window.block_size)

    def growing(self, slots: Int32, lengths: Int32) -> tuple[int, int]:
        """How many slots need another main block, another window block, to reach ``lengths`` (int32 [n])."""
        main, window = self._tables
        return (
            int(np.count_nonzero(lengths > main.count[slots] * main.block_size)),
            int(np.count_nonzero(lengths > window.end[slots] * window.block_size)),
        )

    def grow(self, slot: int, length: int) -> None:
        """Take the blocks that positions below ``length`` lack; `reach` says whether there are enough."""
        main, window = self._tables
        if missing := main.missing(slot, length):
            main.extend(slot, self._take(self._pools.main, missing))
        if missing := window.missing(slot, length):
            window.extend(slot, self._take(self._pools.window, missing))

    def grow_all(self, slots: Int32, lengths: Int32) -> bool:
        """Take the blocks that positions below lengths[i] of slots[i] lack (both int32 [n]); False, taking nothing, if
        some lack."""
        main, window = self._tables
        held_by: list[tuple[BlockTable | WindowTable, Int32]] = [(main, main.count), (window, window.end)]
        lacks = []
        for (table, held), pool in zip(held_by, self._pools, strict=True):
            short = np.flatnonzero(lengths > held[slots] * table.block_size)
            owners = slots[short]
            need = -(-lengths[short] // table.block_size) - held[owners]
            if int(need.sum()) > pool.num_available:
                return False
            lacks.append((table, pool, owners, need))
        for table, pool, owners, need in lacks:
            for place in range(int(need.max(initial=0))):
                lacking = owners[need > place]
                table.push(lacking, self._take(pool, len(lacking)))
        return True

    def take_tail(self, slot: int, length: int) -> bool:
        """Give an empty slot the blocks of ``length`` computed tokens; False, taking nothing, if some lack.

        Of the window only pages that may still be read are taken, from that of ``keep_from(length)`` on.
        """
        main, window = self._tables
        start = window.keep_from(length)
        pages = blocks_for(length, window.block_size) - start // window.block_size
        fits = blocks_for(length, main.block_size) <= self._pools.main.num_available
        if not (fits and pages <= self._pools.window.num_available):
            return False
        window.start_at(slot, start)
        self.grow(slot, length)
        return True

    def trim(self, slots: Int32, lengths: Int32) -> None:
        """Free the window pages that have passed for good; see `WindowTable.trim`."""
        dropped = self._tables.window.trim(slots, lengths)
        if dropped.size:
            self._pools.window.release(dropped)

    def release(self, slot: int) -> None:
        """Give back every block of a slot; those that are cached stay in the cache."""
        if self._prefix is not None:
            self._prefix.forget(slot)
        self._pools.main.release(self._tables.main.clear(slot))
        self._pools.window.release(self._tables.window.clear(slot))
        if self._prefix is not None:
            self._prefix.settle()

    def _take(self, pool: BlockPool, count: int) -> Int32:
        """Allocate, giving up cached blocks as needed."""
        if self._prefix is not None and count > pool.num_free:
            self._prefix.give_up(pool, count - pool.num_free)
        return pool.allocate(count)

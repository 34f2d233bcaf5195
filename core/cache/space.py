"""Blocks for rows: the pools and the tables of an engine, kept in step with each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tandem.cache.pool import BlockPool
from tandem.cache.tables import BlockTable, Int32, WindowTable, blocks_for


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

    Args:
        pools, tables: main and window; nobody else changes the tables.
    """

    def __init__(self, pools: Pools, tables: Tables) -> None:
        self._pools, self._tables = pools, tables

    def reach(self, slot: int, spare: tuple[int, int] = (0, 0)) -> int:
        """First position a slot cannot serve with its blocks and all free but ``spare`` (main, window)."""
        main, window = self._tables
        return min(
            main.reach(slot, max(0, self._pools.main.num_free - spare[0])),
            window.reach(slot, max(0, self._pools.window.num_free - spare[1])),
        )

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
            main.extend(slot, self._pools.main.allocate(missing))
        if missing := window.missing(slot, length):
            window.extend(slot, self._pools.window.allocate(missing))

    def grow_by_one(self, slots: Int32, positions: Int32) -> bool:
        """Take the blocks for one row of each slot (both int32 [n]); False, taking nothing, if some lack."""
        main, window = self._tables
        need_main = slots[positions >= main.count[slots] * main.block_size]
        need_window = slots[positions >= window.end[slots] * window.block_size]
        main_pool, window_pool = self._pools
        if not (main_pool.can_allocate(len(need_main)) and window_pool.can_allocate(len(need_window))):
            return False
        if len(need_main):
            main.push(need_main, main_pool.allocate(len(need_main)))
        if len(need_window):
            window.push(need_window, window_pool.allocate(len(need_window)))
        return True

    def take_tail(self, slot: int, length: int) -> bool:
        """Give an empty slot the blocks of ``length`` computed tokens; False, taking nothing, if some lack.

        Of the window only pages that may still be read are taken, from that of ``keep_from(length)`` on.
        """
        main, window = self._tables
        start = window.keep_from(length)
        pages = blocks_for(length, window.block_size) - start // window.block_size
        fits = self._pools.main.can_allocate(blocks_for(length, main.block_size))
        if not (fits and self._pools.window.can_allocate(pages)):
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
        """Free every block of a slot."""
        self._pools.main.release(self._tables.main.clear(slot))
        self._pools.window.release(self._tables.window.clear(slot))

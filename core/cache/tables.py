"""Host mirrors of the block tables that a step reads on the device.

Both tables have one row per request slot.  The engine uploads only rows that changed since the last
upload (`take_dirty`).  The tables record which block holds which tokens; who owns a block is counted by
`tandem.cache.pool.BlockPool`, so every method that drops blocks returns their ids for release.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tandem.cache.pool import AccountingError
from tandem.errors import ConfigError

Int32 = npt.NDArray[np.int32]
EMPTY = -1  # an entry without a block


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold ``tokens`` tokens."""
    return -(-tokens // block_size)


@dataclass(frozen=True, slots=True)
class WindowGeometry:
    """How far the window caches reach, and the numbers that follow.

    Args:
        window: positions a row attends to, itself included (W).
        block_size: tokens in a window block (Bw).
        longest_chunk: most rows one request can have in one step.
        max_draft: most draft tokens a request has in flight per step; 0 without speculation.
        steps_in_flight: steps that may be scheduled and not yet committed.
    """

    window: int
    block_size: int
    longest_chunk: int
    max_draft: int = 0
    steps_in_flight: int = 1

    def __post_init__(self) -> None:
        sizes = (self.window, self.block_size, self.longest_chunk, self.steps_in_flight)
        if min(sizes) < 1 or self.max_draft < 0:
            raise ConfigError(
                "a window cache of this shape is not possible",
                where="WindowGeometry",
                why=f"sizes must be positive, got {self}",
                fix="use positive sizes and max_draft of at least 0",
            )

    @property
    def rollback(self) -> int:
        """Tokens that may be taken back: a full draft block and its anchor, in each of two steps."""
        return 2 * (self.max_draft + 1)

    @property
    def columns(self) -> int:
        """Width of the window table (NW): no two positions in use at once share an entry."""
        return self.pages(self.steps_in_flight * self.longest_chunk)

    def pages(self, rows: int) -> int:
        """Most blocks a request can hold while ``rows`` rows are scheduled and not yet committed."""
        # Positions from L - W - rollback to L + rows - 1; a span of n positions touches
        # at most ceil((n - 1) / Bw) + 1 blocks whatever its start.
        return blocks_for(self.window + self.rollback + rows - 1, self.block_size) + 1

    def pool_blocks(self, max_running: int, max_tokens_per_step: int) -> int:
        """Blocks with which window blocks are never the reason to wait or to preempt."""
        # pages(rows) exceeds pages(1) by at most rows / Bw + 1; the rows of all requests share the budget.
        rows = self.steps_in_flight * max_tokens_per_step
        return max_running * (self.pages(1) + 1) + blocks_for(rows, self.block_size)


class _Mirror:
    """A host table int32 [slots, columns] with a set of rows that the device has not seen."""

    def __init__(self, max_slots: int, columns: int) -> None:
        self.table: Int32 = np.full((max_slots, columns), EMPTY, dtype=np.int32)
        self._dirty = np.zeros(max_slots, dtype=np.bool_)

    @property
    def columns(self) -> int:
        """Entries in a row."""
        return int(self.table.shape[1])

    def take_dirty(self) -> Int32:
        """Slots whose rows changed since the last call, ascending int32; the caller uploads them."""
        slots = np.flatnonzero(self._dirty).astype(np.int32)
        self._dirty[slots] = False
        return slots

    def mark_dirty(self, slots: Int32) -> None:
        """Rows that were taken and could not be uploaded."""
        self._dirty[slots] = True


class BlockTable(_Mirror):
    """Blocks of the main and index caches: entry ``b`` of a row holds positions ``b*B .. b*B + B - 1``.

    Args:
        max_slots: request slots (R).
        max_len: longest sequence in tokens; NB follows.
        block_size: original tokens in a block (B).
    """

    def __init__(self, max_slots: int, max_len: int, block_size: int) -> None:
        super().__init__(max_slots, blocks_for(max_len, block_size))
        self.block_size = block_size
        self.count: Int32 = np.zeros(max_slots, dtype=np.int32)  # blocks held per slot
        # Positions below it are in blocks that others share: rows there that run again write no entry.
        self.shared: Int32 = np.zeros(max_slots, dtype=np.int32)

    def missing(self, slot: int, length: int) -> int:
        """Blocks to add so that positions below ``length`` have one."""
        return max(0, blocks_for(length, self.block_size) - int(self.count[slot]))

    def reach(self, slot: int, more: int) -> int:
        """First position without a block if ``more`` blocks were added."""
        return (int(self.count[slot]) + more) * self.block_size

    def extend(self, slot: int, ids: Int32) -> None:
        """Append blocks to a row."""
        count = int(self.count[slot])
        if count + len(ids) > self.columns:
            raise _overflow("block table", slot, count + len(ids), self.columns)
        self.table[slot, count : count + len(ids)] = ids
        self.count[slot] = count + len(ids)
        self._dirty[slot] = True

    def push(self, slots: Int32, ids: Int32) -> None:
        """Append one block to each of several distinct rows (both int32 [n])."""
        at = self.count[slots]
        if len(slots) and int(at.max()) >= self.columns:
            worst = int(at.argmax())
            raise _overflow("block table", int(slots[worst]), int(at[worst]) + 1, self.columns)
        self.table[slots, at] = ids
        self.count[slots] = at + 1
        self._dirty[slots] = True

    def blocks(self, slot: int) -> Int32:
        """Ids held by a slot in position order."""
        return self.table[slot, : self.count[slot]].copy()

    def clear(self, slot: int) -> Int32:
        """Drop every block of a slot; returns their ids."""
        ids = self.blocks(slot)
        self.table[slot] = EMPTY
        self.count[slot] = self.shared[slot] = 0
        self._dirty[slot] = True
        return ids


class WindowTable(_Mirror):
    """Blocks of the window caches: entry ``(position // Bw) % NW`` of a row, for the newest positions.

    *Pages* number the blocks of a sequence: page ``p`` holds positions ``p*Bw .. p*Bw + Bw - 1``.  A slot
    holds the pages ``first[slot] .. end[slot] - 1``.
    """

    def __init__(self, max_slots: int, geometry: WindowGeometry) -> None:
        super().__init__(max_slots, geometry.columns)
        self.geometry = geometry
        self.block_size = geometry.block_size
        self.first: Int32 = np.zeros(max_slots, dtype=np.int32)
        self.end: Int32 = np.zeros(max_slots, dtype=np.int32)

    def start_at(self, slot: int, position: int) -> None:
        """Let an empty row begin at the page of ``position`` instead of at page 0."""
        if self.first[slot] != self.end[slot]:
            raise AccountingError(
                "a window row that holds blocks was moved",
                where=f"slot {slot}",
                why=f"it holds pages {self.first[slot]} .. {self.end[slot] - 1}",
                fix="clear the slot first",
            )
        self.first[slot] = self.end[slot] = position // self.block_size

    def missing(self, slot: int, length: int) -> int:
        """Pages to add so that positions below ``length`` have one."""
        return max(0, blocks_for(length, self.block_size) - int(self.end[slot]))

    def reach(self, slot: int, more: int) -> int:
        """First position without a page if ``more`` pages were added."""
        return (int(self.end[slot]) + more) * self.block_size

    def extend(self, slot: int, ids: Int32) -> None:
        """Append pages to a row."""
        end = int(self.end[slot])
        held = end + len(ids) - int(self.first[slot])
        if held > self.columns:
            raise _overflow("window table", slot, held, self.columns)
        self.table[slot, np.arange(end, end + len(ids)) % self.columns] = ids
        self.end[slot] = end + len(ids)
        self._dirty[slot] = True

    def push(self, slots: Int32, ids: Int32) -> None:
        """Append one page to each of several distinct rows (both int32 [n])."""
        at = self.end[slots]
        held = at - self.first[slots]
        if len(slots) and int(held.max()) >= self.columns:
            worst = int(held.argmax())
            raise _overflow("window table", int(slots[worst]), int(held[worst]) + 1, self.columns)
        self.table[slots, at % self.columns] = ids
        self.end[slots] = at + 1
        self._dirty[slots] = True

    def blocks(self, slot: int) -> Int32:
        """Ids held by a slot in position order."""
        pages = np.arange(int(self.first[slot]), int(self.end[slot]))
        ids: Int32 = self.table[slot, pages % self.columns]
        return ids

    def keep_from(self, length: int) -> int:
        """Lowest position that a sequence of ``length`` computed tokens may still read or rewrite."""
        return max(0, length - self.geometry.window - self.geometry.rollback)

    def trim(self, slots: Int32, lengths: Int32) -> Int32:
        """Drop the pages that have passed for good.

        Args:
            slots: int32 [n], distinct.
            lengths: int32 [n], tokens whose rows have been committed.  A page goes when its last position is
                below ``length - W - rollback``.

        Returns:
            int32, ids of the dropped blocks.
        """
        lowest = (lengths - (self.geometry.window + self.geometry.rollback)) // self.block_size
        stale = np.flatnonzero(lowest > self.first[slots])
        if not stale.size:
            return np.empty(0, dtype=np.int32)
        dropped = []
        for i in stale.tolist():
            slot = int(slots[i])
            until = min(int(lowest[i]), int(self.end[slot]))
            entries = np.arange(int(self.first[slot]), until) % self.columns
            dropped.append(self.table[slot, entries])
            self.table[slot, entries] = EMPTY
            self.first[slot] = until
            self._dirty[slot] = True
        return np.concatenate(dropped)

    def clear(self, slot: int) -> Int32:
        """Drop every page of a slot; returns their ids."""
        ids = self.blocks(slot)
        self.table[slot] = EMPTY
        self.first[slot] = self.end[slot] = 0
        self._dirty[slot] = True
        return ids


def _overflow(table: str, slot: int, needed: int, columns: int) -> AccountingError:
    return AccountingError(
        f"a {table} row is full",
        where=f"slot {slot}",
        why=f"{needed} entries are needed, a row has {columns}",
        fix="report this: more tokens were scheduled than the table was sized for",
    )

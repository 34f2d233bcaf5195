"""Host mirrors of the block tables that a step reads on the device.

Both tables have one row per request slot.  The engine uploads only entries that changed since the last
upload (`take_changed`).  The tables record which block holds which tokens; who owns a block is counted by
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
_NO_IDS: Int32 = np.empty(0, dtype=np.int32)


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
    def most_rows(self) -> int:
        """Rows of a request that may be scheduled and not yet committed."""
        return self.steps_in_flight * self.longest_chunk

    @property
    def columns(self) -> int:
        """Width of the window table (NW): no two positions in use at once share an entry."""
        return self.pages(self.most_rows)

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
    """A host table int32 [slots, columns] with a set of entries that the device has not seen.

    Entry ``slot * columns + column`` of the flat table is that of a slot and column.
    """

    def __init__(self, max_slots: int, columns: int) -> None:
        if (max_slots + 1) * columns >= 1 << 31:
            raise ConfigError(
                "a block table is too large",
                where="scheduler.max_slots",
                why=f"{max_slots} slots of {columns} entries; the device counts entries in 32 bits",
                fix="lower it, or use larger blocks",
            )
        self.table: Int32 = np.full((max_slots, columns), EMPTY, dtype=np.int32)
        self._changed: list[Int32] = []

    @property
    def columns(self) -> int:
        """Entries in a row."""
        return int(self.table.shape[1])

    def take_changed(self) -> tuple[Int32, Int32]:
        """Entries that changed since the last call, ascending, and their values, int32 [n]; the caller uploads them."""
        if not self._changed:
            return _NO_IDS, _NO_IDS
        entries = np.sort(np.concatenate(self._changed))
        self._changed.clear()
        entries = entries[np.concatenate(([True], entries[1:] != entries[:-1]))]
        return entries, self.table.reshape(-1)[entries]

    def mark_changed(self, entries: Int32) -> None:
        """Entries that were taken and could not be uploaded."""
        if entries.size:
            self._changed.append(entries)

    def _write(self, slots: Int32 | int, columns: Int32, ids: Int32 | int) -> None:
        self.table[slots, columns] = ids
        self.mark_changed(np.asarray(slots * self.columns + columns, dtype=np.int32))


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
        self._write(slot, np.arange(count, count + len(ids), dtype=np.int32), ids)
        self.count[slot] = count + len(ids)

    def push(self, slots: Int32, ids: Int32) -> None:
        """Append one block to each of several distinct rows (both int32 [n])."""
        at = self.count[slots]
        if len(slots) and int(at.max()) >= self.columns:
            worst = int(at.argmax())
            raise _overflow("block table", int(slots[worst]), int(at[worst]) + 1, self.columns)
        self._write(slots, at, ids)
        self.count[slots] = at + 1

    def blocks(self, slot: int) -> Int32:
        """Ids held by a slot in position order."""
        return self.table[slot, : self.count[slot]].copy()

    def clear(self, slot: int) -> Int32:
        """Drop every block of a slot; returns their ids."""
        ids = self.blocks(slot)
        self._write(slot, np.arange(len(ids), dtype=np.int32), EMPTY)
        self.count[slot] = self.shared[slot] = 0
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
        self._write(slot, np.arange(end, end + len(ids), dtype=np.int32) % self.columns, ids)
        self.end[slot] = end + len(ids)

    def push(self, slots: Int32, ids: Int32) -> None:
        """Append one page to each of several distinct rows (both int32 [n])."""
        at = self.end[slots]
        held = at - self.first[slots]
        if len(slots) and int(held.max()) >= self.columns:
            worst = int(held.argmax())
            raise _overflow("window table", int(slots[worst]), int(held[worst]) + 1, self.columns)
        self._write(slots, at % self.columns, ids)
        self.end[slots] = at + 1

    def blocks(self, slot: int) -> Int32:
        """Ids held by a slot in position order."""
        return self.pages(slot, int(self.first[slot]), int(self.end[slot]))

    def pages(self, slot: int, first: int, end: int) -> Int32:
        """A copy of the ids of pages ``first .. end - 1``, no more than a row has entries."""
        at, count = first % self.columns, end - first
        row: Int32 = self.table[slot]
        if at + count <= self.columns:
            return row[at : at + count].copy()
        return np.concatenate((row[at:], row[: at + count - self.columns]))

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
            return _NO_IDS
        slots = slots[stale]
        first, until = self.first[slots], np.minimum(lowest[stale], self.end[slots])
        self.first[slots] = until
        counts = until - first
        behind = np.cumsum(counts, dtype=np.int32)
        pages = np.arange(behind[-1], dtype=np.int32) + np.repeat(first - (behind - counts), counts)
        owners, columns = np.repeat(slots, counts), pages % self.columns
        dropped: Int32 = self.table[owners, columns]
        self._write(owners, columns, EMPTY)
        return dropped

    def clear(self, slot: int) -> Int32:
        """Drop every page of a slot; returns their ids."""
        ids = self.blocks(slot)
        held = np.arange(int(self.first[slot]), int(self.end[slot]), dtype=np.int32)
        self._write(slot, held % self.columns, EMPTY)
        self.first[slot] = self.end[slot] = 0
        return ids


def _overflow(table: str, slot: int, needed: int, columns: int) -> AccountingError:
    return AccountingError(
        f"a {table} row is full",
        where=f"slot {slot}",
        why=f"{needed} entries are needed, a row has {columns}",
        fix="report this: more tokens were scheduled than the table was sized for",
    )

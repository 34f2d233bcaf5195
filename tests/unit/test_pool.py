"""Block pools and block tables: counts, shapes and lifetimes derived by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.cache.pool import AccountingError, BlockPool
from tandem.cache.space import CacheSpace, Pools, Tables
from tandem.cache.tables import EMPTY, BlockTable, WindowGeometry, WindowTable, blocks_for
from tandem.errors import CapacityError, ConfigError


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_pool_hands_out_every_block_once():
    pool = BlockPool(5)
    first, second = pool.allocate(2), pool.allocate(3)
    assert sorted([*first.tolist(), *second.tolist()]) == [0, 1, 2, 3, 4]
    assert pool.num_free == 0 and not pool.can_allocate(1) and pool.can_allocate(0)
    with pytest.raises(CapacityError, match="1 blocks were asked for, 0 of 5 are free"):
        pool.allocate(1)


def test_pool_counts_owners():
    pool = BlockPool(3)
    held = pool.allocate(2)
    pool.share(held)
    pool.share(held[:1])
    assert pool.ref_counts[held].tolist() == [3, 2]
    assert pool.release(held).size == 0  # owners left: 2 and 1
    assert pool.release(held).tolist() == [held[1]]
    assert pool.num_free == 2
    assert pool.release(held[:1]).tolist() == [held[0]]
    assert pool.num_free == 3 and not pool.ref_counts.any()


@pytest.mark.parametrize("bad", [[0, 0], [3], [-1], [99], [0.5]])
def test_pool_refuses_wrong_releases_and_changes_nothing(bad):
    pool = BlockPool(4)
    pool.allocate(3)  # ids 0, 1, 2
    before = pool.ref_counts
    with pytest.raises(AccountingError):
        pool.release(bad)
    assert pool.num_free == 1 and (pool.ref_counts == before).all()


def test_pool_refuses_double_free_sharing_a_free_block_and_negative_counts():
    pool = BlockPool(2)
    held = pool.allocate(1)
    pool.release(held)
    with pytest.raises(AccountingError, match="released twice"):
        pool.release(held)
    with pytest.raises(AccountingError, match="free block was shared"):
        pool.share(held)
    with pytest.raises(AccountingError):
        pool.allocate(-1)
    with pytest.raises(CapacityError):
        BlockPool(0)
    assert pool.num_free == 2


def test_pool_against_a_plain_model():
    """Random use against a dictionary of owner counts."""
    rng = np.random.default_rng(7)
    pool, owners = BlockPool(23), dict.fromkeys(range(23), 0)
    for _ in range(3000):
        free = sum(count == 0 for count in owners.values())
        held = [block for block, count in owners.items() if count]
        action = rng.integers(3)
        if action == 0:
            count = int(rng.integers(0, 6))
            assert pool.can_allocate(count) == (count <= free)
            if count <= free:
                got = pool.allocate(count).tolist()
                assert len(set(got)) == count and all(owners[block] == 0 for block in got)
                owners.update(dict.fromkeys(got, 1))
        elif held:
            some = rng.choice(held, size=int(rng.integers(1, len(held) + 1)), replace=False)
            if action == 1:
                pool.share(some)
            else:
                freed = pool.release(some)
                assert sorted(freed.tolist()) == sorted(b for b in some.tolist() if owners[b] == 1)
            for block in some.tolist():
                owners[block] += 1 if action == 1 else -1
        assert pool.ref_counts.tolist() == list(owners.values())
        assert pool.num_free == sum(count == 0 for count in owners.values())


@pytest.mark.parametrize(("tokens", "size", "blocks"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (128, 128, 1)])
def test_blocks_for(tokens, size, blocks):
    assert blocks_for(tokens, size) == blocks


def changed(table):
    entries, values = table.take_changed()
    return dict(zip(entries.tolist(), values.tolist(), strict=True))


def test_block_table_maps_positions_and_reports_changed_entries():
    table = BlockTable(max_slots=3, max_len=10, block_size=4)
    assert table.table.shape == (3, 3) and (table.table == EMPTY).all() and not changed(table)
    assert table.missing(1, 5) == 2 and table.reach(1, 2) == 8
    table.extend(1, ids(7, 5))
    assert table.table[1].tolist() == [7, 5, EMPTY] and table.missing(1, 8) == 0 and table.missing(1, 9) == 1
    table.push(ids(2, 1), ids(3, 6))
    assert table.blocks(1).tolist() == [7, 5, 6] and table.blocks(2).tolist() == [3]
    assert changed(table) == {3: 7, 4: 5, 5: 6, 6: 3} and not changed(table)  # rows of three entries
    with pytest.raises(AccountingError, match="row is full"):
        table.extend(1, ids(0))
    with pytest.raises(AccountingError, match="row is full"):
        table.push(ids(2, 1), ids(0, 1))
    assert table.clear(1).tolist() == [7, 5, 6] and (table.table[1] == EMPTY).all()
    table.mark_changed(ids(6))  # could not be uploaded
    assert changed(table) == {3: EMPTY, 4: EMPTY, 5: EMPTY, 6: 3}


def test_window_geometry_by_hand():
    # W = 8, blocks of 4, chunks up to 16, no drafts: rollback 2.  At length L the positions L - 10 .. L + 15
    # are in use: 26 in a row touch at most 8 blocks of 4 (1 token, 6 * 4, 1 token).
    small = WindowGeometry(window=8, block_size=4, longest_chunk=16)
    assert (small.rollback, small.columns) == (2, 8)
    # Five drafts: a block is 6 tokens, two steps roll back 12.  Two steps of 16 rows: 8 + 12 + 32 = 52
    # positions touch at most 14 blocks (1 token, 12 * 4, 3 tokens).
    deep = WindowGeometry(window=8, block_size=4, longest_chunk=16, max_draft=5, steps_in_flight=2)
    assert (deep.rollback, deep.columns) == (12, 14)


def test_window_pool_that_is_never_short():
    # One request at rest: 4 + 2 + 1 positions touch 4 blocks of 2, and one more that it has begun.  Four
    # requests: 20.  The 16 rows of a step fill 8 blocks; two steps, 16.
    assert WindowGeometry(window=4, block_size=2, longest_chunk=16).pool_blocks(4, 16) == 28
    assert WindowGeometry(4, 2, 16, steps_in_flight=2).pool_blocks(4, 16) == 36


@pytest.mark.parametrize("block", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rows", [1, 2, 5, 16])
def test_window_pages_is_the_least_upper_bound(block, rows):
    """Counted over every alignment of the span of positions in use."""
    geometry = WindowGeometry(window=8, block_size=block, longest_chunk=rows)
    spans = [
        len({position // block for position in range(start, start + 8 + geometry.rollback + rows)})
        for start in range(block)
    ]
    assert max(spans) == geometry.pages(rows) == geometry.columns


def test_window_geometry_refuses_impossible_shapes():
    for shape in [(0, 4, 16, 0, 1), (8, 0, 16, 0, 1), (8, 4, 0, 0, 1), (8, 4, 16, -1, 1), (8, 4, 16, 0, 0)]:
        with pytest.raises(ConfigError):
            WindowGeometry(*shape)


def test_window_table_wraps_and_frees_only_what_has_passed():
    table = WindowTable(2, WindowGeometry(window=4, block_size=2, longest_chunk=3))
    # 4 + 2 + 3 = 9 positions touch at most 5 blocks of 2.
    assert table.columns == 5
    table.extend(0, ids(10, 11, 12, 13, 14))
    assert changed(table) == {0: 10, 1: 11, 2: 12, 3: 13, 4: 14}
    with pytest.raises(AccountingError, match="window table row is full"):
        table.extend(0, ids(15))
    # After 7 tokens positions below 7 - 4 - 2 = 1 have passed: page 0 still holds position 1.
    assert table.trim(ids(0), ids(7)).size == 0 and not changed(table)
    # After 8 tokens positions 0 and 1 have passed.
    assert table.keep_from(8) == 2
    assert table.trim(ids(0), ids(8)).tolist() == [10]
    assert table.table[0].tolist() == [EMPTY, 11, 12, 13, 14] and changed(table) == {0: EMPTY}
    table.push(ids(0), ids(15))  # page 5 takes entry 0
    assert table.table[0].tolist() == [15, 11, 12, 13, 14] and table.blocks(0).tolist() == [
        11,
        12,
        13,
        14,
        15,
    ]
    with pytest.raises(AccountingError):
        table.push(ids(0), ids(16))
    assert table.missing(0, 12) == 0 and table.missing(0, 13) == 1 and table.reach(0, 1) == 14
    assert table.clear(0).tolist() == [11, 12, 13, 14, 15] and table.end[0] == 0


def test_window_table_can_begin_late():
    table = WindowTable(1, WindowGeometry(window=4, block_size=2, longest_chunk=3))
    table.start_at(0, 13)
    assert table.missing(0, 15) == 2  # pages 6 and 7
    table.extend(0, ids(4, 9))
    assert table.table[0].tolist() == [EMPTY, 4, 9, EMPTY, EMPTY]  # entries 6 % 5 and 7 % 5
    with pytest.raises(AccountingError, match="moved"):
        table.start_at(0, 0)


def test_space_takes_all_or_nothing():
    geometry = WindowGeometry(window=4, block_size=2, longest_chunk=4)
    pools = Pools(BlockPool(3), BlockPool(4))
    tables = Tables(BlockTable(2, 16, 4), WindowTable(2, geometry))
    space = CacheSpace(pools, tables)
    # Main: 3 blocks of 4 tokens reach 12; window: 4 blocks of 2 reach 8.
    assert space.reach(0) == 8 and space.reach(0, (0, 1)) == 6 and space.reach(0, (2, 0)) == 4
    space.grow(0, 5)
    assert (pools.main.num_free, pools.window.num_free) == (1, 1)
    assert space.growing(ids(0, 1), ids(9, 1)) == (2, 2)
    assert space.growing(ids(0), ids(8)) == (0, 1)
    # Slot 0 at position 8 needs one block of each kind, slot 1 at position 0 too: only one of each is left.
    assert not space.grow_all(ids(0, 1), ids(9, 1))
    assert (pools.main.num_free, pools.window.num_free) == (1, 1)
    # At length 8 positions from 8 - 4 - 2 = 2 on are kept: pages 1, 2, 3 do not fit, nor do 2 main blocks.
    assert not space.take_tail(1, 8)
    space.release(0)
    assert space.take_tail(1, 8) and (pools.main.num_free, pools.window.num_free) == (1, 1)
    assert (tables.window.first[1], tables.window.end[1]) == (1, 4)
    space.trim(ids(1), ids(10))  # keeps positions from 4 on: page 1 goes
    assert pools.window.num_free == 2
    space.release(1)
    assert (pools.main.num_free, pools.window.num_free) == (3, 4)

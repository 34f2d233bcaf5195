"""The prefix cache without a model: names, matches, order of giving up, bounds and counts."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from support.prefixes import Bench

from tandem.cache import prefix as prefix_module
from tandem.cache.hashing import Identity, block_key, fingerprint_of, pack
from tandem.cache.pool import AccountingError, BlockPool
from tandem.cache.prefix import PrefixLimits


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def prompt(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


# -- names -------------------------------------------------------------------------------------


def test_a_key_is_sha256_of_all_that_decides_a_block():
    fields = [b"f", b"p", (1).to_bytes(4, "little") + (258).to_bytes(4, "little"), b"c"]
    plain = b"".join(len(x).to_bytes(8, "little") + x for x in fields)
    assert block_key(b"f", b"p", ids(1, 258), b"c") == hashlib.sha256(plain).digest()
    keys = {
        block_key(*arguments)
        for arguments in [
            (b"f", b"p", ids(1, 258), b"c"),
            (b"g", b"p", ids(1, 258), b"c"),
            (b"f", b"q", ids(1, 258), b"c"),
            (b"f", b"p", ids(1, 259), b"c"),
            (b"f", b"p", ids(1, 258), b"d"),
            (b"fp", b"", ids(1, 258), b"c"),  # the same bytes, cut elsewhere
            (b"", b"fp", ids(1, 258), b"c"),
        ]
    }
    assert len(keys) == 7
    assert pack([b"ab", b""]) != pack([b"a", b"b"]) != pack([b"", b"ab"])


def test_fingerprints_differ_by_any_part():
    base = {"model": "a", "sizes": (128, 32)}
    assert fingerprint_of(base) == fingerprint_of(dict(reversed(base.items())))
    assert len({fingerprint_of(x) for x in (base, base | {"model": "b"}, base | {"sizes": (64, 32)})}) == 3


def test_salt_media_and_roles_part_requests():
    bench, text = Bench(), prompt(1, 20)
    roles = np.array([0] * 8 + [1] * 4 + [0] * 52, dtype=np.uint8)
    image = Identity(media=b"i" * 32, roles=roles, media_start=8)
    other = Identity(media=b"j" * 32, roles=roles, media_start=8)
    assert bench.serve(text) == 0
    assert bench.match(text, Identity(salt="tenant")).length == 0
    # The first two blocks lie before the image and are those of plain text.
    assert bench.match(text, image).length == 8
    assert bench.serve(text, image) == 8
    assert bench.match(text, image).length == 16
    assert bench.match(text, other).length == 8
    moved = Identity(media=b"i" * 32, roles=np.roll(roles, 1), media_start=8)
    assert bench.match(text, moved).length == 8
    assert bench.match(text).length == 16  # of plain text, as it was
    bench.cache.check()


def test_a_hit_never_ends_inside_an_image():
    bench, text = Bench(), prompt(1, 20)
    roles = np.array([0] * 6 + [1] * 4 + [0] * 54, dtype=np.uint8)  # positions 6 .. 9, across the end of block 1
    image = Identity(media=b"i" * 32, roles=roles, media_start=6)
    bench.serve(text, image)
    assert bench.match(text, image).length == 16
    assert bench.match(text, image, limit=11).length == 4


def test_private_requests_neither_give_nor_take():
    bench, text = Bench(), prompt(1, 20)
    assert bench.serve(text, Identity(private=True)) == 0 and bench.cache.stats().entries == 0
    bench.serve(text)
    assert bench.match(text, Identity(private=True)).length == 0


def test_forced_collisions_never_reuse_a_wrong_block(monkeypatch: pytest.MonkeyPatch):
    """A hash of 4 bits: nearly every key is taken by another block."""
    full, seen = block_key, set()

    def four_bits(*arguments: object) -> bytes:
        key = full(*arguments)
        seen.add(key)
        return bytes([key[0] & 15])

    monkeypatch.setattr(prefix_module, "block_key", four_bits)
    rng = np.random.default_rng(3)
    bench, known, hits = Bench(), [], 0
    for _ in range(400):
        text = rng.integers(0, 3, int(rng.integers(5, 30))).tolist()
        salt = "ab"[int(rng.integers(2))]
        found = bench.match(text, Identity(salt=salt))
        assert found.length <= max((common(text, t) for t, s in known if s == salt), default=0)
        hits += found.length > 0
        bench.serve(text, Identity(salt=salt))
        known.append((text, salt))
        assert bench.cache.stats().entries <= 16
    bench.cache.check()
    assert len(seen) > 100 and hits > 5  # both kinds of keys were seen: taken by another, and found


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# -- matches -----------------------------------------------------------------------------------


def test_reuse_is_a_common_prefix_of_whole_blocks():
    """10,000 pairs: what B takes of A is the whole blocks that they share, one token of B left over."""
    rng = np.random.default_rng(11)
    bench, pairs = Bench(), 0
    while pairs < 10_000:
        a = rng.integers(0, 9, int(rng.integers(1, 40))).tolist()
        bench.serve(a)
        for _ in range(20):
            kept, more = int(rng.integers(0, len(a) + 1)), int(rng.integers(1, 20))
            b = (a[:kept] + rng.integers(0, 9, more).tolist())[:40]
            assert bench.match(b).length == min(common(a, b), len(b) - 1) // 4 * 4
            pairs += 1
        bench.cache.clear()
        assert bench.pools.main.num_free == 40 and bench.pools.window.num_free == 120


def test_ratio_two_block_64_and_130_shared_tokens():
    """Two prompts share 130 tokens: no reuse past the last whole block of original tokens."""
    bench = Bench(max_len=256, block=64, page=32, window=128, blocks=20, pages=60)
    shared = prompt(1, 130)
    bench.serve(shared + prompt(500, 70))
    assert bench.match(shared + prompt(900, 70)).length == 128
    assert bench.match(shared).length == 128 and bench.match(shared[:128]).length == 64


@pytest.mark.parametrize("block", [16, 64, 128])
def test_a_repeated_prompt_of_2048_tokens(block: int):
    bench = Bench(max_len=2304, block=block, page=16, window=128, blocks=400, pages=400)
    text = prompt(1, 2048)
    bench.serve(text)
    assert bench.match(text).length == (2048 - 1) // block * block
    assert bench.match([*text, 7]).length == 2048


def test_a_match_brings_the_pages_that_rows_after_it_read():
    """Window 5: a row at 8 reads 4 .. 8, so pages 2 and 3 of two positions each."""
    bench = Bench()
    bench.start(0, prompt(1, 9))
    held = bench.tables.window.table[0, 2:4].tolist()
    bench.commit(0, 9)
    found = bench.match(prompt(1, 12))
    assert (found.length, found.start, found.window_start) == (8, 8, 4)
    assert found.pages.tolist() == held and found.blocks.tolist() == bench.tables.main.blocks(0)[:2].tolist()
    bench.space.adopt(1, found)
    assert (bench.tables.window.first[1], bench.tables.window.end[1], bench.tables.main.count[1]) == (2, 4, 2)
    assert bench.tables.main.shared[1] == 8
    # Owners: both slots and the cache.
    assert bench.pools.main.ref_counts[found.blocks].tolist() == [3, 3]
    assert bench.pools.window.ref_counts[found.pages].tolist() == [3, 3]
    bench.space.release(0)
    bench.space.release(1)
    assert bench.pools.main.num_idle == 2 and bench.pools.main.num_available == 40
    assert bench.tables.main.shared[1] == 0
    bench.cache.check()


@pytest.mark.parametrize(
    ("window", "block", "page", "skip", "pages"),
    [
        (5, 4, 2, 0, [2, 3]),
        (2, 4, 2, 1, [3]),  # a row at 8 reads 7: only the last page of each block is ever needed
        (3, 4, 1, 2, [6, 7]),
        (7, 4, 2, 0, [1, 2, 3]),  # positions 2 .. 7: pages of two blocks
        (1, 4, 2, 2, []),  # a row reads itself only
        (40, 4, 2, 0, [0, 1, 2, 3]),
    ],
)
def test_pages_of_a_match_by_hand(window: int, block: int, page: int, skip: int, pages: list[int]):
    bench = Bench(window=window, block=block, page=page)
    bench.start(0, prompt(1, 9))
    numbers = bench.tables.window.table[0].copy()
    bench.commit(0, 9)
    found = bench.match(prompt(1, 12))
    assert found.length == 8 and found.pages.tolist() == [numbers[p] for p in pages]
    assert found.window_start == (pages[0] * page if pages else 8)
    assert bench.cache.stats().pages == 2 * (block // page - skip)
    bench.space.release(0)
    bench.space.adopt(1, found)
    bench.space.grow(1, 60)
    bench.cache.check()


def test_blocks_are_cached_as_they_are_completed_and_only_then():
    bench = Bench()
    bench.start(0, prompt(1, 20))
    for length, entries in [(3, 0), (4, 1), (7, 1), (8, 2), (19, 4), (20, 5)]:
        bench.commit(0, length)
        assert bench.cache.stats().entries == entries
    bench.space.release(0)
    assert bench.cache.stats().entries == 5 and bench.pools.main.num_idle == 5
    bench.cache.check()


def test_of_equal_blocks_the_first_is_kept():
    bench, text = Bench(), prompt(1, 13)
    bench.start(0, text)
    bench.start(1, text)  # at the same time: nothing to take yet
    bench.commit(0, 13)
    bench.commit(1, 13)
    first = bench.tables.main.blocks(0)[:3].tolist()
    assert bench.match(text).blocks.tolist() == first
    own = bench.tables.main.blocks(1)[:3]
    bench.space.release(1)
    assert not bench.pools.main.ref_counts[own].any()
    assert bench.cache.stats().entries == 3
    bench.cache.check()


def test_a_request_that_was_put_back_finds_its_own_blocks():
    bench, text = Bench(), prompt(1, 14)
    bench.start(0, text)
    bench.commit(0, 10)  # the rest was never computed
    bench.space.release(0)
    assert bench.start(0, text).length == 8
    bench.commit(0, 14)
    bench.space.release(0)
    assert bench.match([*text, 99, 98, 97]).length == 12
    bench.cache.check()


# -- giving up ---------------------------------------------------------------------------------


def test_leaves_go_first_and_least_recently_used():
    bench = Bench(blocks=12)
    a, b = prompt(100, 13), prompt(200, 13)  # three whole blocks each, and a fourth that is not cached
    bench.serve(a)
    bench.serve(b)
    bench.serve(a)  # a is younger than b now
    assert (bench.pools.main.num_free, bench.pools.main.num_idle) == (6, 6)
    bench.space.grow(1, 32)  # 8 blocks: two of b go, its last first
    assert bench.match(b).length == 4 and bench.match(a).length == 12
    bench.space.grow(1, 40)  # two more: the rest of b, then the last of a
    assert bench.match(b).length == 0 and bench.match(a).length == 8
    assert bench.cache.stats().evicted_blocks == 4
    assert bench.pools.main.num_free == 0 and bench.pools.main.num_available == 2
    bench.cache.check()


def test_using_a_block_uses_those_before_it():
    bench = Bench(blocks=12)
    stem, a, b = prompt(1, 4), prompt(100, 9), prompt(200, 9)
    bench.serve(stem + a)  # the stem and two blocks
    bench.serve(prompt(300, 5))
    bench.serve(stem + b)
    # Six blocks are cached.  Oldest to youngest: a's two, the lone one, b's two, the stem.
    for held, gone in [(7, 1), (8, 2), (9, 3), (10, 4), (11, 5)]:
        bench.space.grow(1, held * 4)
        assert bench.cache.stats().evicted_blocks == gone
        left = [bench.match(x).length for x in (stem + a, prompt(300, 5), stem + b)]
        assert left == [[8, 4, 12], [4, 4, 12], [4, 0, 12], [4, 0, 8], [4, 0, 4]][gone - 1]


def test_blocks_in_use_stay_and_idle_ones_above_them_can_be_had():
    bench = Bench(blocks=8)
    text = prompt(1, 13)
    bench.start(0, text)
    bench.start(1, text)  # its own copy of the same blocks
    bench.commit(0, 12)  # cached: three blocks of slot 0
    bench.commit(1, 12)
    bench.tokens[1, 13:16] = 9
    bench.commit(1, 16)  # a fourth, of slot 1, after them
    bench.space.release(0)
    assert (bench.pools.main.num_free, bench.pools.main.num_idle) == (1, 3)
    # The idle blocks have a child that is in use: its entry goes, its block stays with the request.
    held = bench.tables.main.blocks(1)
    bench.space.grow(2, 16)
    assert bench.tables.main.blocks(1).tolist() == held.tolist() and bench.cache.stats().entries == 0
    bench.cache.check()
    # The request goes on, and what it computes is cached again from its own blocks.
    bench.space.release(2)
    bench.space.grow(1, 20)
    bench.tokens[1, 16:20] = 8
    bench.commit(1, 20)
    assert bench.cache.stats().entries == 5
    bench.cache.check()


def test_pages_go_alone_and_earlier_and_hits_shrink_to_where_pages_are():
    bench = Bench(pages=60)
    text = prompt(1, 25)  # six whole blocks, two pages each
    bench.serve(text)
    bench.serve(prompt(100, 5))
    assert bench.pools.window.num_idle == 14
    # Inside a prompt first, oldest first: blocks 0 .. 4 of the long prompt; its end and the short one stay.
    free = bench.pools.window.num_free
    bench.cache.give_up(bench.pools.window, 9)
    assert bench.pools.window.num_free == free + 10 and bench.cache.stats().evicted_pages == 10
    assert bench.match(text).length == 24 and bench.match(text, limit=23).length == 0
    assert bench.match(prompt(100, 5)).length == 4
    # Then the least recently used.
    bench.cache.give_up(bench.pools.window, 1)
    assert bench.match(text).length == 0 and bench.match(prompt(100, 5)).length == 4
    assert bench.cache.stats().entries == 7  # the blocks are all there
    # A request that computes it again gives the pages back.
    assert bench.serve(text) == 0
    assert bench.match(text).length == 24
    bench.cache.check()


def test_a_window_longer_than_a_block_needs_the_pages_of_all_its_blocks():
    """Window 7: a row at 16 reads 10 .. 16, pages of blocks 2 and 3."""
    bench, text = Bench(window=7), prompt(1, 21)
    bench.serve(text)
    for gone in range(3):
        bench.cache.give_up(bench.pools.window, 1)  # blocks 0, 1, 2, two pages each
        assert bench.cache.stats().evicted_pages == 2 * (gone + 1)
        ends = [bench.match(text, limit=limit).length for limit in (4, 8, 12, 16, 20)]
        assert ends == [[0, 0, 12, 16, 20], [0, 0, 0, 16, 20], [0, 0, 0, 0, 20]][gone]


def test_pages_where_prompts_part_are_kept():
    bench = Bench(pages=80)
    stem = prompt(1, 8)
    bench.serve(stem + prompt(100, 9))
    bench.cache.give_up(bench.pools.window, 6)  # of the stem's blocks and of the third
    assert bench.match(stem + prompt(200, 9)).length == 0
    bench.serve(stem + prompt(200, 9))  # finds nothing, computes the stem again, and parts from the first here
    # Cold now: block 0 of the stem, block 2 of the second prompt.  The stem's end is not among them.
    bench.cache.give_up(bench.pools.window, 4)
    assert bench.match(stem + prompt(300, 9)).length == 8
    bench.cache.check()


def test_running_requests_never_lack_pages_for_cached_ones():
    bench = Bench(pages=12, blocks=40)
    bench.serve(prompt(1, 17))  # four whole blocks: 8 pages are cached
    assert (bench.pools.window.num_free, bench.pools.window.num_idle) == (4, 8)
    assert bench.space.reach(1) == 24 and bench.space.reach(1, (0, 2)) == 20
    bench.space.grow(1, 24)
    assert bench.pools.window.num_available == 0
    assert not bench.space.grow_all(ids(2), ids(1))
    bench.cache.check()


def test_reach_with_a_match_is_what_can_be_had_after_adopting():
    rng = np.random.default_rng(5)
    for _ in range(200):
        bench = Bench(blocks=int(rng.integers(9, 16)), pages=int(rng.integers(20, 40)))
        text = prompt(1, int(rng.integers(5, 30)))
        bench.serve(text)
        bench.space.grow(2, int(rng.integers(1, 9)))
        found = bench.match(text)
        spare = (int(rng.integers(0, 3)), int(rng.integers(0, 3)))
        expected = bench.space.reach(1, spare, found)
        bench.space.adopt(1, found)
        assert bench.space.reach(1, spare) == expected
        bench.space.grow(1, min(expected, 60))
        bench.cache.check()


@pytest.mark.parametrize(("blocks", "pages"), [(3, None), (None, 4), (0, None), (3, 4)])
def test_bounds_hold_for_what_no_request_uses(blocks: int | None, pages: int | None):
    bench = Bench(limits=PrefixLimits(max_blocks=blocks, max_pages=pages))
    rng = np.random.default_rng(1)
    for _ in range(30):
        text = rng.integers(0, 3, int(rng.integers(1, 40))).tolist()
        bench.serve(text)
        assert blocks is None or bench.pools.main.num_idle <= blocks
        assert pages is None or bench.pools.window.num_idle <= pages
        bench.cache.check()
    bench.start(0, prompt(1, 33))
    bench.commit(0, 33)
    # What a running request holds anyway is no burden.
    assert bench.pools.main.num_idle <= (blocks if blocks is not None else 40)
    assert bench.match(prompt(1, 33)).length == 32


def test_replay_needs_blocks_only_and_starts_at_the_end_of_a_group():
    bench = Bench(limits=PrefixLimits(replay=6))
    text = prompt(1, 25)
    bench.serve(text)
    assert bench.cache.stats().pages == 0 and bench.pools.window.num_idle == 0
    found = bench.match(text)
    # 24 - 6 = 18, and the block boundary at or below it is 16.
    assert (found.length, found.start, found.window_start) == (24, 16, 16) and not found.pages.size
    assert bench.match(text[:10]).length == 0  # 8 tokens cached, all of them would be computed again
    assert bench.match(text[:14]).start == 4
    bench.space.adopt(1, found)
    assert bench.tables.main.shared[1] == 24 and bench.tables.window.first[1] == 8
    bench.space.grow(1, 25)
    bench.cache.check()


def test_totals():
    bench = Bench(limits=PrefixLimits(block_bytes=100, page_bytes=7))
    bench.serve(prompt(1, 10))
    bench.serve(prompt(1, 10))
    bench.serve(prompt(50, 3))
    stats = bench.cache.stats()
    assert (stats.queries, stats.query_tokens, stats.hits, stats.hit_tokens) == (3, 23, 1, 8)
    assert (stats.entries, stats.pages, stats.bytes) == (2, 4, 228)
    stats.hits = 99
    assert bench.cache.stats().hits == 1


def test_the_cache_refuses_to_give_what_it_lacks():
    bench = Bench()
    bench.serve(prompt(1, 10))
    with pytest.raises(AccountingError, match="asked for more than it has"):
        bench.cache.give_up(bench.pools.main, 3)


def test_recounting_finds_a_wrong_count():
    bench = Bench()
    bench.serve(prompt(1, 10))
    kept = bench.pools.main.kept
    bench.pools.main.drop(kept[:1])
    with pytest.raises(AccountingError):
        bench.cache.check()


# -- the pool ----------------------------------------------------------------------------------


def test_a_pool_knows_which_blocks_only_the_cache_holds():
    pool = BlockPool(6)
    held = pool.allocate(3)
    pool.keep(held[:2])
    assert pool.ref_counts[held].tolist() == [2, 2, 1] and pool.num_idle == 0
    assert pool.release(held).tolist() == [held[2]]
    assert (pool.num_idle, pool.num_free, pool.num_available) == (2, 4, 6)
    pool.share(held[:1])
    assert pool.num_idle == 1 and pool.idle(held[:2]) == 1
    with pytest.raises(AccountingError, match="released twice"):
        pool.release(held[1:2])  # the cache's own
    with pytest.raises(AccountingError, match="cached twice"):
        pool.keep(held[:1])
    with pytest.raises(AccountingError, match="not cached"):
        pool.drop(held[2:])
    assert pool.drop(held[:2]).tolist() == [held[1]]
    assert (pool.num_idle, pool.num_free) == (0, 5)


def test_random_use_recounted_after_every_change():
    rng = np.random.default_rng(9)
    bench = Bench(slots=6, blocks=26, pages=60)
    running: dict[int, list[int]] = {}
    hits = 0
    for _ in range(2500):
        action, slot = int(rng.integers(3)), int(rng.integers(6))
        if action == 0 and slot not in running:
            text = rng.integers(0, 2, int(rng.integers(1, 30))).tolist()
            found = bench.match(text)
            if bench.space.reach(slot, (0, 0), found) >= len(text):
                hits += bench.start(slot, text).length > 0
                running[slot] = text
        elif action == 1 and running:
            slot = int(rng.choice(list(running)))
            bench.commit(slot, int(rng.integers(1, len(running[slot]) + 1)))
        elif running:
            slot = int(rng.choice(list(running)))
            bench.space.release(slot)
            del running[slot]
        bench.cache.check()
        held = [bench.tables.main.blocks(s) for s in running]
        counts = np.bincount(np.concatenate([*held, bench.pools.main.kept]).astype(int), minlength=26)
        assert counts.tolist() == bench.pools.main.ref_counts.tolist()
        held = [bench.tables.window.blocks(s) for s in running]
        counts = np.bincount(np.concatenate([*held, bench.pools.window.kept]).astype(int), minlength=60)
        assert counts.tolist() == bench.pools.window.ref_counts.tolist()
    assert hits > 50 and bench.cache.stats().evicted_blocks > 50 and bench.cache.stats().evicted_pages > 50

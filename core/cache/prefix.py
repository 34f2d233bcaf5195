"""The prefix cache: blocks and window pages of finished work, found again by what they were computed from.

A cached block has one reference more in its pool, owned by this cache; its window pages likewise.  Contents never
change once all tokens of a block are committed, so a request can take them into its own tables.  A request that is
resumed after H tokens needs every block before H, and the pages that hold positions ``H - W + 1 .. H - 1``; the
rest of its state follows from the tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tandem.cache.hashing import PLAIN, Identity, block_key
from tandem.cache.nodes import Node, Pages, Tree
from tandem.cache.pool import AccountingError, BlockPool
from tandem.cache.recount import recount

if TYPE_CHECKING:
    from tandem.cache.space import Pools, Tables

Int32 = npt.NDArray[np.int32]
_NEVER = int(np.iinfo(np.int32).max)
_NO_IDS = np.empty(0, dtype=np.int32)


class Match(NamedTuple):
    """What a request can take from the cache.

    Args:
        length: tokens whose blocks are cached, a multiple of the block size; 0 for nothing.
        start: first position to compute: ``length``, or below it where windows are rebuilt by replay.
        blocks: int32 [length / block_size], ids in the main pool.
        pages: int32, ids in the window pool, of consecutive pages that end at ``length``; empty with replay.
        window_start: lowest position whose window entry exists when row ``start`` runs.
        tokens: of the request.
        path: the nodes, for `PrefixCache.adopt`.
        identity: of the request.
    """

    length: int
    start: int
    blocks: Int32
    pages: Int32
    window_start: int
    tokens: int
    path: tuple[Node, ...]
    identity: Identity


@dataclass(slots=True)
class PrefixStats:
    """Totals since the cache was made, and its size now.

    Args:
        queries: admitted requests; query_tokens: their tokens.
        hits: requests that took something; hit_tokens: tokens they did not compute.
        evicted_blocks, evicted_pages: given up.
        entries: cached blocks now; pages: cached window pages now.
        bytes: memory of both.
    """

    queries: int = 0
    query_tokens: int = 0
    hits: int = 0
    hit_tokens: int = 0
    evicted_blocks: int = 0
    evicted_pages: int = 0
    entries: int = 0
    pages: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class PrefixLimits:
    """Bounds of the cache.

    Args:
        max_blocks, max_pages: most blocks and pages that only the cache holds; None: what the pools have.
        block_bytes, page_bytes: memory of one of each in all layers, for figures.
        replay: rebuild windows by computing the last ``replay`` tokens again instead of keeping pages; 0 keeps pages.
    """

    max_blocks: int | None = None
    max_pages: int | None = None
    block_bytes: int = 0
    page_bytes: int = 0
    replay: int = 0


class PrefixCache:
    """Cached prefixes of one engine.

    Args:
        pools, tables: as `CacheSpace`; the cache takes references in the pools and fills rows of the tables.
        tokens: int32 [R, max_len], token ids by request slot, kept by the caller.
        fingerprint: of what decides the bits; see `tandem.cache.hashing.fingerprint_of`.
        limits: bounds.
    """

    def __init__(
        self, pools: Pools, tables: Tables, tokens: Int32, fingerprint: bytes, limits: PrefixLimits
    ) -> None:
        self._pools, self._tables, self._tokens = pools, tables, tokens
        self._fingerprint, self._limits = fingerprint, limits
        self._tree, self._order = Tree(), Pages()
        self._stats = PrefixStats()
        self._now = 0
        slots = len(tables.main.count)
        self._noted = np.full(slots, _NEVER, dtype=np.int32)  # blocks of a slot that need no look any more
        self._tips: list[Node | None] = [None] * slots  # the last of them
        self._identities: list[Identity] = [PLAIN] * slots
        self._size, self._page_size = tables.main.block_size, tables.window.block_size
        self._per_block = self._size // self._page_size
        self._reach = tables.window.geometry.window - 1  # positions before H that rows after it read
        # Pages of a block that no resumption at a block's end can read are not kept.
        self._skip = max(0, self._size - self._reach) // self._page_size
        self._depth = max(1, -(-self._reach // self._size))  # blocks whose pages a resumption needs

    @property
    def limits(self) -> PrefixLimits:
        """Bounds of the cache."""
        return self._limits

    def stats(self) -> PrefixStats:
        """A copy of the totals, with the size now."""
        held = len(self._pools.window.kept)
        size = len(self._tree) * self._limits.block_bytes + held * self._limits.page_bytes
        return replace(self._stats, entries=len(self._tree), pages=held, bytes=size)

    # -- requests ----------------------------------------------------------------------------

    def match(self, tokens: Int32, identity: Identity = PLAIN, limit: int | None = None) -> Match:
        """The longest cached prefix that a request can be resumed from; changes nothing.

        Args:
            tokens: int32 [n], all tokens of the request known now.
            identity: what else decides its contents.
            limit: most tokens to take; at least one row is left to compute in any case.
        """
        most = len(tokens) - 1 if limit is None else min(limit, len(tokens) - 1)
        path: list[Node] = []
        while not identity.private and (len(path) + 1) * self._size <= most:
            node = self._find(path[-1] if path else None, tokens, len(path), identity)
            if node is None:
                break
            path.append(node)
        while path and not self._resumable(path, identity):
            path.pop()
        length = len(path) * self._size
        blocks = np.array([node.block for node in path], dtype=np.int32)
        start, pages, window_start = length, _NO_IDS, 0
        if self._limits.replay:
            start = window_start = self._replay_from(length)
        elif path:
            held = np.concatenate([node.pages for node in path[-self._depth :] if node.pages is not None])
            first = max(0, length - self._reach) // self._page_size
            pages = held[len(held) - (length // self._page_size - first) :]
            window_start = first * self._page_size
        return Match(length, start, blocks, pages, window_start, len(tokens), tuple(path), identity)

    def adopt(self, slot: int, match: Match) -> None:
        """Give a slot without blocks what `match` found just before; references are taken and both tables filled.

        Call it for every request that starts, with an empty match too: its blocks are cached as they are completed.
        """
        self._now += 1
        main, window = self._tables
        if match.length:
            self._pools.main.share(match.blocks)
            main.extend(slot, match.blocks)
            main.shared[slot] = match.length
            window.start_at(slot, match.window_start)
        if match.pages.size:
            self._pools.window.share(match.pages)
            window.extend(slot, match.pages)
        for node in match.path:
            node.used = self._now
        for node in match.path[-self._depth :] if match.pages.size else ():
            node.resumed = True
            self._order.warm(node)
        self._tips[slot] = match.path[-1] if match.path else None
        self._noted[slot] = _NEVER if match.identity.private else len(match.path)
        self._identities[slot] = match.identity
        self._stats.queries += 1
        self._stats.query_tokens += match.tokens
        self._stats.hits += match.length > 0
        self._stats.hit_tokens += match.start

    def note(self, slots: Int32, lengths: Int32) -> None:
        """Cache blocks that are complete: int32 [n] distinct slots, and how many of their tokens are committed.

        Call it before pages that have passed are freed.
        """
        full = lengths // self._size
        todo = np.flatnonzero(full > self._noted[slots]).tolist()
        if not todo:
            return
        fresh: list[Node] = []
        paged: list[Node] = []
        for i in todo:
            self._note(int(slots[i]), int(full[i]), fresh, paged)
        # In one go: nothing is given up while blocks are noted.
        self._pools.main.keep([node.block for node in fresh])
        self._pools.window.keep(np.concatenate([_NO_IDS, *(node.pages for node in paged if node.pages is not None)]))

    def forget(self, slot: int) -> None:
        """A slot gives its blocks back; what is cached of it stays."""
        tip = self._tips[slot]
        if tip is not None and tip.alive:
            self._now += 1
            tip.used = self._now
            if tip.pages is not None:
                self._order.warm(tip)
        self._tips[slot], self._noted[slot], self._identities[slot] = None, _NEVER, PLAIN

    def _note(self, slot: int, full: int, fresh: list[Node], paged: list[Node]) -> None:
        """Note one slot; nodes that are new, and nodes that were given pages, are added to the lists."""
        self._now += 1
        tip, done = self._tips[slot], int(self._noted[slot])
        if tip is not None and not tip.alive:
            tip, done = None, 0  # given up meanwhile; the slot still holds every block
        identity, row = self._identities[slot], self._tokens[slot]
        for index in range(done, full):
            key, own, context = self._name(tip, row, index, identity)
            node = self._tree.get(key)
            if node is None:
                block = int(self._tables.main.table[slot, index])
                node = Node(key, tip, own.copy(), context, block, self._now)
                self._tree.add(node)
                fresh.append(node)
            elif not node.holds(tip, own, context):
                self._noted[slot] = _NEVER  # another block has this key, so the rest cannot be named
                return
            node.used = self._now
            if node.pages is None and self._take_pages(slot, node, index):
                paged.append(node)
            self._pass(tip)
            tip = node
        if tip is not None and tip.pages is not None:
            self._order.warm(tip)
        self._tips[slot], self._noted[slot] = tip, full

    def _pass(self, node: Node | None) -> None:
        """Order the pages of a node that a request has gone beyond: cold unless prompts part there."""
        if node is None or node.pages is None or node.resumed:
            return
        if node.children > 1:
            self._order.warm(node)
        else:
            self._order.cool(node)

    def _name(
        self, parent: Node | None, tokens: Int32, index: int, identity: Identity
    ) -> tuple[bytes, Int32, bytes]:
        """Key, tokens (a view) and context of block ``index`` after ``parent``."""
        start = index * self._size
        own, context = tokens[start : start + self._size], identity.context(start, start + self._size)
        return block_key(self._fingerprint, parent.key if parent is not None else b"", own, context), own, context

    def _find(self, parent: Node | None, tokens: Int32, index: int, identity: Identity) -> Node | None:
        """The node of block ``index``; a key that is equal is not enough, tokens and context are compared."""
        key, own, context = self._name(parent, tokens, index, identity)
        node = self._tree.get(key)
        return node if node is not None and node.holds(parent, own, context) else None

    def _take_pages(self, slot: int, node: Node, index: int) -> bool:
        """Let a node have the pages of a slot, if the slot still holds them all and they are exact."""
        if self._limits.replay:
            return False
        window, size = self._tables.window, self._per_block
        first, end = index * size + self._skip, (index + 1) * size
        if first < end and (first < window.first[slot] or end > window.end[slot]):
            return False
        node.pages = window.pages(slot, first, end)
        self._order.cool(node)
        return True

    def _resumable(self, path: list[Node], identity: Identity) -> bool:
        length = len(path) * self._size
        if identity.cuts_span(length):
            return False
        if self._limits.replay:
            start = self._replay_from(length)
            return start > 0 and not identity.cuts_span(start)
        return all(node.pages is not None for node in path[-self._depth :])

    def _replay_from(self, length: int) -> int:
        """First token to compute again: block boundaries are ends of groups at every ratio."""
        return max(0, (length - self._limits.replay) // self._size * self._size)

    # -- room --------------------------------------------------------------------------------

    def give_up(self, pool: BlockPool, count: int) -> None:
        """Free at least ``count`` idle blocks of a pool.

        Raises:
            AccountingError: fewer are idle.
        """
        if count > pool.num_idle:
            raise AccountingError(
                "the prefix cache was asked for more than it has",
                where="PrefixCache.give_up",
                why=f"{count} blocks were asked for, {pool.num_idle} are idle",
                fix="report this: num_available is to be asked first",
            )
        goal = pool.num_free + count
        if pool is self._pools.window:
            self._give_up_pages(goal)
        else:
            self._give_up_blocks(goal)

    def settle(self) -> None:
        """Give up what exceeds the bounds."""
        limits, pools = self._limits, self._pools
        if limits.max_blocks is not None and pools.main.num_idle > limits.max_blocks:
            self._give_up_blocks(pools.main.num_free + pools.main.num_idle - limits.max_blocks)
        if limits.max_pages is not None and pools.window.num_idle > limits.max_pages:
            self._give_up_pages(pools.window.num_free + pools.window.num_idle - limits.max_pages)

    def clear(self) -> None:
        """Give up everything."""
        while (leaf := self._tree.pop_leaf()) is not None:
            self._tree.remove(leaf)
            self._drop([leaf])

    def _give_up_blocks(self, goal: int) -> None:
        pool = self._pools.main
        busy: list[Node] = []  # leaves that a request holds: giving them up frees nothing
        removed: list[Node] = []
        free = pool.num_free
        while free < goal:
            leaf = self._tree.pop_leaf()
            if leaf is None:
                # Idle blocks are left only above busy leaves; their cache entries go for them.
                leaf = busy.pop(0)
            elif pool.is_idle(leaf.block):
                free += 1
            else:
                busy.append(leaf)
                continue
            self._tree.remove(leaf)
            removed.append(leaf)
        self._drop(removed)
        for leaf in busy:
            self._tree.requeue(leaf)

    def _give_up_pages(self, goal: int) -> None:
        pool, order = self._pools.window, self._order.in_order()
        chosen: list[Node] = []
        free = pool.num_free
        while free < goal:
            some = _with_pages(order, goal - free)
            if not some:
                break
            owner = np.repeat(np.arange(len(some)), [len(pages) for _, pages in some])
            idle = np.bincount(owner[pool.are_idle(np.concatenate([pages for _, pages in some]))], minlength=len(some))
            chosen += [node for (node, _), count in zip(some, idle.tolist(), strict=True) if count]
            free += int(idle.sum())
        self._drop_pages(chosen)

    def _drop_pages(self, nodes: Sequence[Node]) -> None:
        pages = np.concatenate([_NO_IDS, *(node.pages for node in nodes if node.pages is not None)])
        self._pools.window.drop(pages)
        self._stats.evicted_pages += len(pages)
        for node in nodes:
            self._order.remove(node)
            node.pages = None

    def _drop(self, nodes: Sequence[Node]) -> None:
        """Let go of what nodes held that the tree has lost."""
        self._drop_pages(nodes)
        self._pools.main.drop([node.block for node in nodes])
        self._stats.evicted_blocks += len(nodes)

    def check(self) -> None:
        """Recount everything, for tests and long runs.

        Raises:
            AccountingError: the pools, the nodes and the order of giving up disagree.
        """
        recount(self._pools, self._tree, self._order)


def _with_pages(nodes: Iterable[Node], count: int) -> list[tuple[Node, Int32]]:
    """The next nodes that hold pages, until they hold ``count``: fewer nodes can never free so many."""
    found = []
    for node in nodes:
        if node.pages is not None:
            found.append((node, node.pages))
            count -= len(node.pages)
            if count <= 0:
                break
    return found

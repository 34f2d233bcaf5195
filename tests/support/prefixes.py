"""A prefix cache without a model: pools, tables and requests that come and go as an engine lets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tandem.cache.hashing import PLAIN, Identity
from tandem.cache.pool import BlockPool
from tandem.cache.prefix import Match, PrefixCache, PrefixLimits
from tandem.cache.space import CacheSpace, Pools, Tables
from tandem.cache.tables import BlockTable, WindowGeometry, WindowTable


@dataclass
class Bench:
    """An engine's cache side.

    A block of 4 tokens holds two pages of 2; a window of 5 reads 4 positions back: a hit needs one block's pages.
    """

    slots: int = 4
    max_len: int = 64
    block: int = 4
    page: int = 2
    window: int = 5
    blocks: int = 40
    pages: int = 120
    limits: PrefixLimits = PrefixLimits()
    tokens: np.ndarray = field(init=False)
    pools: Pools = field(init=False)
    tables: Tables = field(init=False)
    cache: PrefixCache = field(init=False)
    space: CacheSpace = field(init=False)

    def __post_init__(self) -> None:
        geometry = WindowGeometry(self.window, self.page, self.max_len, 0, 2)
        self.tokens = np.zeros((self.slots, self.max_len), dtype=np.int32)
        self.pools = Pools(BlockPool(self.blocks), BlockPool(self.pages))
        self.tables = Tables(BlockTable(self.slots, self.max_len, self.block), WindowTable(self.slots, geometry))
        self.cache = PrefixCache(self.pools, self.tables, self.tokens, b"model", self.limits)
        self.space = CacheSpace(self.pools, self.tables, self.cache)

    def match(self, prompt: Sequence[int], identity: Identity = PLAIN, limit: int | None = None) -> Match:
        return self.cache.match(np.asarray(prompt, dtype=np.int32), identity, limit)

    def start(self, slot: int, prompt: Sequence[int], identity: Identity = PLAIN) -> Match:
        """Admit a request and take blocks for its prompt."""
        found = self.match(prompt, identity)
        self.tokens[slot, : len(prompt)] = prompt
        self.space.adopt(slot, found)
        self.space.grow(slot, len(prompt))
        return found

    def commit(self, slot: int, length: int) -> None:
        self.space.commit(np.array([slot], dtype=np.int32), np.array([length], dtype=np.int32))

    def serve(self, prompt: Sequence[int], identity: Identity = PLAIN, slot: int = 0) -> int:
        """A request from start to end; returns the tokens it took from the cache."""
        found = self.start(slot, prompt, identity)
        self.commit(slot, len(prompt))
        self.space.release(slot)
        return found.length

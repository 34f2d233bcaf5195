"""Replays a request trace through the block manager, without a model: what a prefix cache of some size would hit.

A trace has one JSON object a line: ``timestamp`` (ms), ``input_length`` and ``output_length`` (tokens) and
``hash_ids``, a number for each 512 tokens of the input; equal numbers mean equal input up to the end of the block.
That is the format of the traces of Mooncake (FAST '25).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tandem.cache.pool import BlockPool
from tandem.cache.prefix import PrefixCache, PrefixLimits
from tandem.cache.space import CacheSpace, Pools, Tables
from tandem.cache.tables import BlockTable, WindowGeometry, WindowTable, blocks_for
from tandem.errors import ConfigError

TRACE_BLOCK = 512  # tokens behind one hash id
WINDOW, PAGE = 128, 32


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace: tokens of its input, and a number for each block of them, the last one maybe partial."""

    input_length: int
    hash_ids: tuple[int, ...]

    def tokens(self) -> npt.NDArray[np.int32]:
        """int32 [input_length], token ids that are equal where the trace says that the input is."""
        ids: npt.NDArray[np.int32] = np.repeat(np.array(self.hash_ids, dtype=np.int32), TRACE_BLOCK)
        return ids[: self.input_length]


@dataclass(frozen=True, slots=True)
class TraceResult:
    """What a cache of some size did.

    Args:
        blocks: blocks of 512 tokens in the pool.
        ends: most prompts' ends whose window pages are kept; None for all.
        requests: served; too_long: not served, for they need more blocks than there are.
        tokens: of the inputs served; hit_tokens: of them taken from the cache.
        hits: requests that took something.
        evicted_blocks, evicted_ends: given up.
    """

    blocks: int
    ends: int | None
    requests: int
    too_long: int
    tokens: int
    hit_tokens: int
    hits: int
    evicted_blocks: int
    evicted_ends: int

    @property
    def hit_rate(self) -> float:
        """Part of the tokens that were not computed."""
        return self.hit_tokens / self.tokens if self.tokens else 0.0


def read_trace(path: str | os.PathLike[str]) -> list[TraceRequest]:
    """Read a trace.

    Raises:
        ConfigError: the file cannot be read, or a line is no request of this format.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(
            "a request trace cannot be read", where=str(path), why=str(error), fix="give a file of JSON lines"
        ) from error
    return [_request(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _request(line: str, where: str) -> TraceRequest:
    try:
        row = json.loads(line)
        length, ids = row["input_length"], row["hash_ids"]
        fits = type(length) is int and length > 0 and isinstance(ids, list)
        fits = fits and len(ids) == blocks_for(length, TRACE_BLOCK)
        if not fits or not all(type(x) is int and 0 <= x < 1 << 31 for x in ids):
            raise ValueError(f"input_length {length!r} with {len(ids) if isinstance(ids, list) else ids!r} hash_ids")
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "a line of a request trace cannot be used",
            where=where,
            why=f"{type(error).__name__}: {error}",
            fix=f"give input_length and one hash id from 0 to 2^31 - 1 for each {TRACE_BLOCK} tokens",
        ) from error
    return TraceRequest(length, tuple(ids))


def replay(trace: Sequence[TraceRequest], blocks: int, ends: int | None = None) -> Iterator[TraceResult]:
    """Serve the requests one after another, in order; outputs are left out, for the trace does not name them.

    Args:
        trace: the requests.
        blocks: blocks of 512 tokens in the pool; running and cached ones share it.
        ends: most prompts' ends whose window pages are kept while no request uses them; None for all.

    Yields:
        The totals after each request.
    """
    longest = max((request.input_length for request in trace), default=1)
    reach = blocks_for(WINDOW - 1, PAGE)
    geometry = WindowGeometry(WINDOW, PAGE, longest)
    pages = geometry.pages(longest) + reach * (blocks if ends is None else ends + 1)
    tokens = np.zeros((1, longest), dtype=np.int32)
    pools = Pools(BlockPool(blocks), BlockPool(pages))
    tables = Tables(BlockTable(1, longest, TRACE_BLOCK), WindowTable(1, geometry))
    limits = PrefixLimits(max_pages=None if ends is None else reach * ends)
    cache = PrefixCache(pools, tables, tokens, b"trace", limits)
    space = CacheSpace(pools, tables, cache)
    too_long, slots = 0, np.zeros(1, dtype=np.int32)
    for request in trace:
        length = request.input_length
        if len(request.hash_ids) > blocks:
            too_long += 1
        else:
            tokens[0, :length] = request.tokens()
            space.adopt(0, space.match(tokens[0, :length]))
            space.grow(0, length)
            space.commit(slots, np.array([length], dtype=np.int32))
            space.release(0)
        stats = cache.stats()
        yield TraceResult(
            blocks=blocks,
            ends=ends,
            requests=stats.queries,
            too_long=too_long,
            tokens=stats.query_tokens,
            hit_tokens=stats.hit_tokens,
            hits=stats.hits,
            evicted_blocks=stats.evicted_blocks,
            evicted_ends=stats.evicted_pages // reach,
        )

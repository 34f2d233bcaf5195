"""Finds tokens by what they spell."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tandem.tokenizer.detokenize import TokenBytes

Ids = npt.NDArray[np.intp]


class TokenIndex:
    """Finds tokens by their bytes.

    Args:
        token_bytes: bytes of every token.
        size: number of token ids.
    """

    def __init__(self, token_bytes: TokenBytes, size: int) -> None:
        self.size = size
        self._bytes = [token_bytes.get(token, skip_special=True) for token in range(size)]

    def text(self, tokens: Iterable[int]) -> bytes:
        """Bytes that tokens add to a text; none for ids without a token."""
        return b"".join(self._bytes[token] for token in tokens if token < self.size)

    def tail(self, tokens: Sequence[int], size: int) -> bytes:
        """The last bytes of the text of tokens, at least ``size`` where there are so many."""
        found, length = [], 0
        for token in reversed(tokens):
            if length >= size:
                break
            found.append(self._bytes[token] if token < self.size else b"")
            length += len(found[-1])
        return b"".join(reversed(found))

    def containing(self, word: bytes) -> Ids:
        """Ids of tokens that have a word in them."""
        places = np.array([match.start() for match in re.finditer(b"(?=" + re.escape(word) + b")", self._joined)])
        if not len(places):
            return np.empty(0, dtype=np.intp)
        owner = np.searchsorted(self._ends, places, side="right")
        found: Ids = np.unique(owner[places + len(word) <= self._ends[owner]])
        return found

    def beginning(self, part: bytes) -> Ids:
        """Ids of tokens that begin with a part, which does not end with the byte 255."""
        texts, ids = self._sorted
        return ids[bisect_left(texts, part) : bisect_left(texts, part[:-1] + bytes([part[-1] + 1]))]

    @cached_property
    def _joined(self) -> bytes:
        return b"".join(self._bytes)

    @cached_property
    def _ends(self) -> Ids:
        ends: Ids = np.cumsum([len(text) for text in self._bytes])
        return ends

    @cached_property
    def _sorted(self) -> tuple[list[bytes], Ids]:
        order = sorted(range(self.size), key=self._bytes.__getitem__)
        return [self._bytes[token] for token in order], np.array(order, dtype=np.intp)

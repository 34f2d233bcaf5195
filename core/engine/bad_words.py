"""Keeps words out of an output's text, however tokens cut them.

A token is banned where its bytes would complete a word in the text so far.  That is decided on the bytes of the
text, so it holds for every way to tokenise a word, inside longer words, and with control tokens between its parts
(they add no text).  UTF-8 makes byte and character matches the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tandem.tokenizer.token_index import TokenIndex

Bits = npt.NDArray[np.int32]


class BadWords:
    """The words that one request's output must not contain.

    Args:
        index: of the tokenizer.
        words: texts, none empty.
    """

    def __init__(self, index: TokenIndex, words: Sequence[str]) -> None:
        self._index = index
        self._words = [word.encode() for word in words]
        self._longest = max((len(word) for word in self._words), default=1) - 1
        allowed = np.ones(-(-index.size // 32) * 32, dtype=np.bool_)
        for word in self._words:
            allowed[index.containing(word)] = False
        self._allowed, self._always = allowed, _packed(allowed)

    def masks(self, known: Sequence[int], drafts: Sequence[int], rows: int) -> Bits:
        """Which tokens may come next, as the mask of a grammar has it.

        Args:
            known: output tokens so far.
            drafts: tokens after these, at least ``rows - 1``.
            rows: places after the known tokens and the first 0, 1, ... drafts.

        Returns:
            int32 [rows, words of 32 tokens].
        """
        found = np.empty((rows, len(self._always)), dtype=np.int32)
        tail = self._index.tail(known, self._longest)
        for row in range(rows):
            found[row] = self._mask(tail)
            if row + 1 < rows:
                tail += self._index.text(drafts[row : row + 1])
        return found

    def _mask(self, tail: bytes) -> Bits:
        allowed = None
        for word in self._words:
            for size in range(1, min(len(word) - 1, len(tail)) + 1):
                if tail.endswith(word[:size]):
                    allowed = self._allowed.copy() if allowed is None else allowed
                    allowed[self._index.beginning(word[size:])] = False
        return self._always if allowed is None else _packed(allowed)


def _packed(allowed: npt.NDArray[np.bool_]) -> Bits:
    return np.packbits(allowed, bitorder="little").view("<i4").astype(np.int32)

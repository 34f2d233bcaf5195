"""Interpolated modified Kneser-Ney n-gram models over token ids: the bar for the small model.

Chen & Goodman, "An empirical study of smoothing techniques for language modeling" (1998), section 3: three
discounts for every order, estimated from how many n-grams occur once to four times; below the highest order,
an n-gram counts in how many different tokens it follows, unless it begins with BOS, which follows none.

``python -m tools.train_nano.kneser_ney --data build/nano/data`` prints bits per byte of the test part.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tools.train_nano.dataset import DEFAULT_DIR, load_dataset
from tools.train_nano.tokenizer import BOS_TOKEN_ID, VOCAB_SIZE

MAX_ORDER = 5
# For counts-of-counts that give no usable estimate: some of them zero, as in tiny texts.
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
_ABSENT = -1

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Level:
    """N-grams of one order; an n-gram's code is its tokens as the digits of a number, sorted by code."""

    codes: _Ints
    counts: _Ints
    discounts: _Floats  # [4], by count 0, 1, 2, 3 or more
    contexts: _Ints  # codes of the n-grams without their last token, sorted
    totals: _Ints  # counts over each context
    discounted: _Floats  # discounts taken off each context, which go to the lower order

    @classmethod
    def of(cls, codes: _Ints, counts: _Ints, vocab_size: int) -> _Level:
        discounts = np.array([0.0, *estimate_discounts(counts)])
        contexts, starts = np.unique(codes // vocab_size, return_index=True)
        totals = np.add.reduceat(counts, starts)
        discounted = np.add.reduceat(discounts[np.minimum(counts, 3)], starts)
        return cls(codes, counts, discounts, contexts, totals, discounted)


class KneserNey:
    """A model of one order; use :meth:`fit`."""

    def __init__(self, levels: Sequence[_Level], vocab_size: int) -> None:
        self._levels = tuple(levels)
        self._vocab_size = vocab_size
        self.order = len(self._levels)

    @classmethod
    def fit(cls, stream: NDArray[np.integer[Any]], order: int, vocab_size: int) -> KneserNey:
        """Count a stream of documents, each BOS, tokens.

        Args:
            stream: token ids [N], the first is BOS; no n-gram crosses from one document to the next.
            order: tokens of the longest n-gram, at least 1.
            vocab_size: what the uniform distribution below order 1 spreads over.

        Raises:
            ValueError: codes of that order do not fit 64 bits.
        """
        if order < 1 or vocab_size**order > np.iinfo(np.int64).max:
            raise ValueError(f"no n-grams of order {order} over {vocab_size} tokens")
        rows = windows(stream, order)
        longer: _Ints | None = None
        levels: list[_Level] = []
        for length in range(order, 0, -1):
            codes, counts = np.unique(_codes(rows, length, vocab_size), return_counts=True)
            if longer is not None:
                # Each longer n-gram is one different token before the n-gram that it ends with.
                followed, kinds = np.unique(longer % vocab_size**length, return_counts=True)
                inside = codes // vocab_size ** (length - 1) != BOS_TOKEN_ID
                counts[inside] = kinds[np.searchsorted(followed, codes[inside])]
            levels.append(_Level.of(codes, counts.astype(np.int64), vocab_size))
            longer = codes
        return cls(levels[::-1], vocab_size)

    def probabilities(self, rows: _Ints) -> _Floats:
        """Probability of the last token of each row after those before it.

        Args:
            rows: token ids [N, order] from :func:`windows`; -1 where the document has not begun.

        Returns:
            float64 [N], each above 0.
        """
        result = np.full(len(rows), 1.0 / self._vocab_size)
        for length, level in enumerate(self._levels, 1):
            present = rows[:, -length] != _ABSENT
            codes = _codes(rows, length, self._vocab_size)
            count = _look_up(level.codes, level.counts, codes)
            context = codes // self._vocab_size
            total = _look_up(level.contexts, level.totals, context)
            left = _look_up(level.contexts, level.discounted, context)
            kept = np.maximum(count - level.discounts[np.minimum(count, 3)], 0.0)
            lower = result[present]
            result[present] = np.where(total > 0, (kept + left * lower) / np.maximum(total, 1), lower)
        return result

    def distribution(self, context: Sequence[int]) -> _Floats:
        """Probabilities of every token id after the last ``order - 1`` tokens of ``context``, float64 [V]."""
        last = list(context)[len(context) - min(len(context), self.order - 1) :]
        rows = np.full((self._vocab_size, self.order), _ABSENT, np.int64)
        rows[:, self.order - 1 - len(last) : self.order - 1] = last
        rows[:, -1] = np.arange(self._vocab_size)
        return self.probabilities(rows)

    def bits(self, stream: NDArray[np.integer[Any]]) -> float:
        """Bits to predict every token of a stream of documents but the BOS, which are given."""
        return float(-np.log2(self.probabilities(windows(stream, self.order))).sum())


def estimate_discounts(counts: _Ints) -> tuple[float, float, float]:
    """Discounts of n-grams that count 1, 2, and 3 or more, from the counts of one order."""
    once, twice, thrice, four = (int((counts == value).sum()) for value in range(1, 5))
    if not (once and twice and thrice):
        return FALLBACK_DISCOUNTS
    share = once / (once + 2 * twice)
    found = (1 - 2 * share * twice / once, 2 - 3 * share * thrice / twice, 3 - 4 * share * four / thrice)
    usable = all(0 <= discount <= value for value, discount in enumerate(found, 1))
    return found if usable else FALLBACK_DISCOUNTS


def windows(stream: NDArray[np.integer[Any]], order: int) -> _Ints:
    """The ``order`` tokens up to and including each token to predict.

    Returns:
        int64 [N, order], a row for every token but BOS; -1 before the BOS of the row's document.
    """
    tokens = stream.astype(np.int64)
    place = np.arange(len(tokens))
    begins = np.maximum.accumulate(np.where(tokens == BOS_TOKEN_ID, place, 0))
    ends = place[tokens != BOS_TOKEN_ID]
    index = ends[:, None] - np.arange(order - 1, -1, -1)
    return np.where(index >= begins[ends][:, None], tokens[np.maximum(index, 0)], _ABSENT)


def _codes(rows: _Ints, length: int, vocab_size: int) -> _Ints:
    """Codes of the last ``length`` tokens of the rows that have as many."""
    chosen = rows[rows[:, -length] != _ABSENT]
    powers = vocab_size ** np.arange(length - 1, -1, -1, dtype=np.int64)
    return np.asarray(chosen[:, -length:] @ powers)


def _look_up(keys: _Ints, values: NDArray[Any], wanted: _Ints) -> NDArray[Any]:
    """Values of sorted keys, 0 where a key is not there."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Bits per byte of Kneser-Ney models on the test part.")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="what tools.train_nano.dataset wrote")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    data = load_dataset(arguments.data)
    train, test = data.text.numpy(), data.test.numpy()
    found: dict[int, float] = {}
    for order in tqdm(range(1, MAX_ORDER + 1), desc="orders", disable=None):
        found[order] = KneserNey.fit(train, order, VOCAB_SIZE).bits(test) / data.test_bytes
    if arguments.json:
        print(json.dumps({"bits_per_byte": found, "test_bytes": data.test_bytes, "train_tokens": len(train)}))
        return
    print(f"{len(train):,} training tokens, {data.test_bytes:,} test bytes")
    for order, value in found.items():
        print(f"order {order}: {value:.4f} bits per byte")


if __name__ == "__main__":
    main()

"""Kneser-Ney models against hand-computed probabilities and a plain recursive implementation."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest

from tools.train_nano.kneser_ney import KneserNey, estimate_discounts, windows

BOS, EOS, A, B, C = 0, 1, 3, 4, 5
TOY = np.array([BOS, A, B, EOS, BOS, A, C, EOS], np.int32)


def random_stream(seed: int, documents: int = 150, vocab: int = 60) -> np.ndarray:
    """Documents of tokens whose frequencies fall as those of words do."""
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    for _ in range(documents):
        length = int(rng.integers(1, 12))
        ids += [BOS, *(3 + np.minimum(rng.zipf(1.4, length), vocab - 3) - 1).tolist(), EOS]
    return np.array(ids, np.int32)


def test_unigrams_by_hand() -> None:
    # Counts a 2, b 1, c 1, EOS 2 of 6 tokens; no count of 3, so the discounts are 1/2, 1, 3/2.
    # Taken off: 2 * 1/2 + 2 * 1 = 3, spread over 6 ids: 1/2 each.
    expected = [Fraction(1, 12), Fraction(1, 4), Fraction(1, 12), Fraction(1, 4), Fraction(1, 6), Fraction(1, 6)]
    assert KneserNey.fit(TOY, 1, 6).distribution([]) == pytest.approx([float(p) for p in expected])


def test_bigrams_by_hand() -> None:
    model = KneserNey.fit(TOY, 2, 6)
    # Below, tokens count what they follow: a, b, c one token each, EOS two; 5 in all, 5/2 taken off.
    lower = [Fraction(n, 60) for n in (5, 17, 5, 11, 11, 11)]
    assert model.distribution([C + 1]) == pytest.approx([float(p) for p in lower])  # a context never seen
    # After BOS: a twice, so 1 of 2 is taken off.  After a: b and c once each, so 1/2 + 1/2 of 2.
    after_bos = [(Fraction(token == A) + p) / 2 for token, p in enumerate(lower)]
    after_a = [(Fraction(token in (B, C), 2) + p) / 2 for token, p in enumerate(lower)]
    assert model.distribution([BOS]) == pytest.approx([float(p) for p in after_bos])
    assert model.distribution([BOS, A]) == pytest.approx([float(p) for p in after_a])
    # After b: EOS once, half of it taken off.
    eos_after_b = Fraction(1, 2) + lower[EOS] / 2
    bits = -math.log2(after_bos[A] * after_a[B] * eos_after_b)
    assert model.bits(np.array([BOS, A, B, EOS])) == pytest.approx(bits)


def test_discounts_by_hand() -> None:
    # 10, 4, 2 and 1 n-grams occur once to four times: Y = 10 / 18.
    counts = np.array([1] * 10 + [2] * 4 + [3] * 2 + [4] + [9] * 5)
    assert estimate_discounts(counts) == pytest.approx((5 / 9, 7 / 6, 17 / 9))


@pytest.mark.parametrize("counts", [[1, 1, 2, 2], [2, 2, 3], [1, 1, 3], [1, 2, 3, *[4] * 50]])
def test_discounts_without_an_estimate(counts: list[int]) -> None:
    assert estimate_discounts(np.array(counts)) == (0.5, 1.0, 1.5)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_sum_to_one(order: int) -> None:
    stream = random_stream(1)
    model = KneserNey.fit(stream, order, 60)
    seen = stream[1:7].tolist()
    for context in ([], [BOS], [BOS, *seen[:1]], seen, [55, 56, 57, 58], [3, 3, 3, 3], [58, 3, 4], [EOS]):
        probabilities = model.distribution(context)
        assert probabilities.sum() == pytest.approx(1.0, abs=1e-12)
        assert (probabilities > 0).all()


def test_windows_stay_inside_their_document() -> None:
    expected = [[-1, BOS, A], [BOS, A, B], [A, B, EOS], [-1, BOS, A], [BOS, A, C], [A, C, EOS]]
    assert windows(TOY, 3).tolist() == expected


def test_no_order_whose_codes_overflow() -> None:
    with pytest.raises(ValueError, match="order 6"):
        KneserNey.fit(TOY, 6, 2048)
    with pytest.raises(ValueError, match="order 0"):
        KneserNey.fit(TOY, 0, 2048)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_it_agrees_with_a_recursive_implementation(order: int) -> None:
    train, test = random_stream(2), random_stream(3, documents=20)
    reference = Recursive(train.tolist(), order, 60)
    assert order == 1 or reference.estimated > 0  # the estimates are reached, not only the fallback
    found = KneserNey.fit(train, order, 60).bits(test)
    assert found == pytest.approx(reference.bits(test.tolist()), rel=1e-12)


class Recursive:
    """The definition, a dictionary for every order."""

    def __init__(self, stream: list[int], order: int, vocab: int) -> None:
        self.vocab = vocab
        self.order = order
        self.estimated = 0
        grams: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
        for document in split(stream):
            for end in range(2, len(document) + 1):
                for length in range(1, min(order, end) + 1):
                    grams[length][tuple(document[end - length : end])] += 1
        self.counts: dict[int, dict[tuple[int, ...], int]] = {order: dict(grams[order])}
        for length in range(1, order):
            before: dict[tuple[int, ...], set[int]] = defaultdict(set)
            for gram in grams[length + 1]:
                before[gram[1:]].add(gram[0])
            self.counts[length] = {g: n if g[0] == BOS else len(before[g]) for g, n in grams[length].items()}
        self.discounts = {length: self._discounts(length) for length in self.counts}
        self.after: dict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
        for level in self.counts.values():
            for gram, count in level.items():
                self.after[gram[:-1]][gram[-1]] = count

    def _discounts(self, length: int) -> list[float]:
        n = [sum(1 for count in self.counts[length].values() if count == k) for k in range(5)]
        if not n[1] * n[2] * n[3]:
            return [0.0, 0.5, 1.0, 1.5]
        y = n[1] / (n[1] + 2 * n[2])
        found = [0.0] + [k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3)]
        if any(not 0 <= discount <= k for k, discount in enumerate(found)):
            return [0.0, 0.5, 1.0, 1.5]
        self.estimated += 1
        return found

    def probability(self, context: tuple[int, ...], word: int) -> float:
        lower = self.probability(context[1:], word) if context else 1 / self.vocab
        followers = self.after.get(context)
        if not followers:
            return lower
        discounts = self.discounts[len(context) + 1]
        left = sum(discounts[min(count, 3)] for count in followers.values())
        count = followers.get(word, 0)
        return (count - discounts[min(count, 3)] + left * lower) / sum(followers.values())

    def bits(self, stream: list[int]) -> float:
        return -sum(
            math.log2(self.probability(tuple(document[max(0, end - self.order + 1) : end]), document[end]))
            for document in split(stream)
            for end in range(1, len(document))
        )


def split(stream: list[int]) -> list[list[int]]:
    starts = [i for i, token in enumerate(stream) if token == BOS] + [len(stream)]
    return [stream[a:b] for a, b in zip(starts, starts[1:], strict=False)]

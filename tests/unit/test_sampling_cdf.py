"""Exact integer arithmetic of sampling against Python integers, and the filters worked by hand."""

from __future__ import annotations

import math
import random

import pytest
import torch

from tandem.ops._fixed_cdf import kept_tokens, mul_shift, weights

PLATEAU = 1 << 30


def extreme(bits: int) -> list[int]:
    near = [1 << n for n in (0, 1, 26, 27, 28, 31, 32, 47, 48, bits - 1)]
    around = {n + step for n in near for step in (-1, 0, 1)}
    values = around | {0, (1 << bits) - 1, (1 << bits) - (1 << 27)}
    return sorted(value for value in values if value < 1 << bits)


@pytest.mark.parametrize(
    ("a_bits", "b_bits", "shift"), [(53, 49, 53), (33, 49, 32), (54, 54, 54), (54, 35, 27), (53, 54, 44)]
)
def test_mul_shift_is_exact(a_bits, b_bits, shift):
    """u * total / 2^53 and top_p * total / 2^32 at a vocabulary of 2^18, and the limits of the domain."""
    source = random.Random(shift)
    pairs = [(a, b) for a in extreme(a_bits) for b in extreme(b_bits)]
    pairs += [(source.getrandbits(a_bits), source.getrandbits(b_bits)) for _ in range(5000)]
    pairs += [(source.getrandbits(source.randint(1, a_bits)), (1 << b_bits) - 1) for _ in range(500)]
    pairs = [(a, b) for a, b in pairs if a * b >> shift < 1 << 63]
    a, b = (torch.tensor(side) for side in zip(*pairs, strict=True))
    assert mul_shift(a, b, shift).tolist() == [x * y >> shift for x, y in pairs]


def test_weights_are_scaled_exponentials():
    d = torch.tensor([0.0, -0.0, float("-inf"), -200.0, -21.0, -1.0, -0.001, -15.5])
    w = weights(d)
    assert w[:4].tolist() == [PLATEAU, PLATEAU, 0, 0]
    assert w[4].item() == 0  # exp(-21) * 2^30 = 0.81
    for value, weight in zip(d[5:].tolist(), w[5:].tolist(), strict=True):
        exact = math.exp(value) * 2**30
        assert exact * (1 - 2**-22) - 1 <= weight <= exact * (1 + 2**-22)


def kept(logits: list[float], top_p: float, top_k: int = -1, min_p: float | None = None) -> list[int]:
    row = torch.tensor([logits])
    least = None if min_p is None else torch.tensor([min_p])
    numbers = torch.tensor([top_p]), torch.tensor([top_k], dtype=torch.int32), least
    mask = kept_tokens(row, weights(row - row.amax()), *numbers)
    return mask[0].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(1e-30, [0]), (0.2499, [0]), (0.25, [0, 1]), (0.4999, [0, 1]), (0.5, [0, 1, 2]), (1.0, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_crossing_token_and_ties_go_by_id(top_p, expected):
    """Before four equal tokens lie 0, 1/4, 1/2, 3/4 of the weight; a token stays while that is <= top_p."""
    assert kept([1.0] * 4, top_p) == expected


def test_top_p_goes_by_logit_not_by_id():
    """Probabilities 0.0024, 0.0473, 0.9503 (logits 0, 3, 6): after id 2 lie 0.95, after id 1 0.9976."""
    assert kept([0.0, 3.0, 6.0], 0.94) == [2]
    assert kept([0.0, 3.0, 6.0], 0.96) == [1, 2]
    assert kept([0.0, 3.0, 6.0], 0.999) == [0, 1, 2]


def test_top_p_comes_before_top_k():
    """Five equal tokens, top_p 0.3, top_k 2: top-p keeps two (0 and 0.2 lie before them), top-k both.

    The other order would renormalise two tokens to 1/2 each and drop the second.
    """
    assert kept([0.0] * 5, 0.3, 2) == [0, 1]


def test_top_k_ties_go_by_id_and_zeros_of_both_signs_are_equal():
    assert kept([1.0, 2.0, 1.0, 2.0, 1.0], 1.0, 3) == [0, 1, 3]
    assert kept([-0.0, 0.0, -0.0], 1.0, 2) == [0, 1]
    assert kept([1.0, 2.0], 1.0, 7) == [0, 1]
    assert kept([1.0, 2.0, 0.0], 1.0, 1) == [1]


def test_order_goes_by_logit_where_weights_are_equal():
    """exp(-1e-12) is 1 in float32, so both tokens weigh 2^30; the larger logit still comes first."""
    assert kept([0.0, 1e-12], 1.0, 1) == [1]


@pytest.mark.parametrize(("share", "count"), [(2**22 - 0.25, 2), (2**22 - 0.75, 1)])
def test_top_p_is_rounded_to_32_bits(share, count):
    """1024 equal tokens: the sum is 2^40, so a share of 2^22 (rounded) lets exactly one token, 2^30, lie before."""
    assert kept([0.0] * 1024, share / 2**32) == list(range(count))


def test_tokens_without_weight_go_with_the_filter():
    """exp(-30) * 2^30 < 1: the token has no weight; all of it lies before, more than top_p of it."""
    assert kept([0.0, -30.0], 0.9999999) == [0]
    assert kept([0.0, -30.0], 1.0) == [0, 1]


HALF = math.log(0.5)  # in float32 exp of it times 2^30 is 2^29 within 64


@pytest.mark.parametrize(("min_p", "expected"), [(0.0, [0, 1, 2, 3]), (0.24, [0, 1, 2]), (0.26, [0, 1]), (1.0, [0])])
def test_min_p_goes_by_the_weight_of_the_likeliest(min_p, expected):
    """Relative weights 1, 1/2, 1/4, and one below 2^-30 that only 0 keeps."""
    assert kept([2.0, 2.0 + HALF, 2.0 + 2 * HALF, -30.0], 1.0, min_p=min_p) == expected


def test_min_p_of_one_keeps_all_that_are_as_likely_and_its_edge_is_included():
    assert kept([1.0, 0.0, 1.0], 1.0, min_p=1.0) == [0, 2]
    least = weights(torch.tensor([[HALF]])).item() / 2**30  # 30 bits, of which float32 has the first 24: no rounding
    assert kept([0.0, HALF], 1.0, min_p=least) == [0, 1]
    assert kept([0.0, HALF], 1.0, min_p=least + 2**-24) == [0]


def test_min_p_comes_before_top_p_which_sees_the_rest_alone():
    """Four tokens of weight 1 and forty of 1/8: 0.49 of all 9 is 4.41; 0.49 of the four is 1.96, less than two."""
    logits = [0.0] * 4 + [3 * HALF] * 40
    assert len(kept(logits, 0.49)) == 8  # before the eighth lie 4 + 3/8, before the ninth 4 + 4/8
    assert kept(logits, 0.49, min_p=0.5) == [0, 1]
    assert kept(logits, 1.0, 2, min_p=0.5) == [0, 1]

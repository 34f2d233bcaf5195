"""Integer arithmetic of sampling: the counter hash, exact scaling, and integer weights.

Everything here is int64 and exact.  Sums of the weights may be taken in any order, so every device that is
given the same weights draws the same token.  Products and sums of the hash are modulo 2^64 (int64 wraps
around).
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor

WEIGHT_BITS = 30  # the most likely token of a row has weight 2^30
UNIFORM_BITS = 53
SHARE_BITS = 32  # of top_p and min_p
_LIMB_BITS = 27
_LIMB = (1 << _LIMB_BITS) - 1


def _signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit value."""
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical shift: torch shifts int64 arithmetically, so the copies of the sign bit are cleared."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def hash64(z: Tensor) -> Tensor:
    """SplitMix64 of each element: int64 -> int64, both as 64 unsigned bits."""
    z = z + _GOLDEN
    z = (z ^ _shift_right(z, 30)) * _MIX_1
    z = (z ^ _shift_right(z, 27)) * _MIX_2
    return z ^ _shift_right(z, 31)


def uniform53(seed: Tensor, position: Tensor, case: int = 0) -> Tensor:
    """Random integers below 2^53 of seed int64 [R] and position int64 [R]; `case` separates uses."""
    counter = (position * 3 + case) * _GOLDEN
    return _shift_right(hash64(seed + (counter ^ (counter << 13))), 64 - UNIFORM_BITS)


def mul_shift(a: Tensor, b: Tensor, bits: int) -> Tensor:
    """floor(a * b / 2^bits), exact, for 0 <= a, b < 2^54 and 27 <= bits <= 54 with a result below 2^63.

    With limbs of 27 bits, a * b = high * 2^54 + middle * 2^27 + low.  The low limb's own low bits cannot
    carry past the shift, and high * 2^54 is a multiple of 2^bits, so both floors are taken apart.
    """
    a_high, a_low = a >> _LIMB_BITS, a & _LIMB
    b_high, b_low = b >> _LIMB_BITS, b & _LIMB
    middle = a_high * b_low + a_low * b_high + ((a_low * b_low) >> _LIMB_BITS)  # below 2^56
    return ((a_high * b_high) << (2 * _LIMB_BITS - bits)) + (middle >> (bits - _LIMB_BITS))


def inverse_cdf(mass: Tensor, target: Tensor) -> Tensor:
    """First id, in id order, whose inclusive sum of mass int64 [R, V] exceeds target int64 [R]; int64 [R]."""
    return (mass.cumsum(-1) <= target.unsqueeze(-1)).sum(-1)


def draw(weight: Tensor, uniform: Tensor) -> Tensor:
    """A token of weight int64 [R, V] for uniform int64 [R] below 2^53: `inverse_cdf` at floor(u * sum / 2^53)."""
    return inverse_cdf(weight, mul_shift(uniform, weight.sum(-1), UNIFORM_BITS))


def weights(scaled: Tensor) -> Tensor:
    """floor(exp(d) * 2^30) int64 of scaled logits d <= 0 f32 (-inf gives 0)."""
    return (torch.exp(scaled) * float(1 << WEIGHT_BITS)).to(torch.int64)


def enough_weight(weight: Tensor, min_p: Tensor) -> Tensor:
    """Tokens that min-p leaves: weight >= min_p * 2^30, the weight of the likeliest.

    Reads weight int64 [R, V], min_p f32 [R] in 0..1 (0 leaves all).  Returns bool [R, V].  With min_p rounded to
    32 bits the comparison is of integers: 4 * weight >= round(min_p * 2^32).
    """
    share = torch.round(min_p * float(1 << SHARE_BITS)).to(torch.int64)
    return (weight << (SHARE_BITS - WEIGHT_BITS)) >= share.unsqueeze(-1)


def kept_tokens(
    logits: Tensor, weight: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor | None = None
) -> Tensor:
    """Tokens that min-p, then top-p, then top-k leave.

    Reads logits f32 [R, V] without NaN, weight int64 [R, V], top_p f32 [R], top_k int32 [R] (below 1 keeps
    all), min_p f32 [R] or None (keeps all).  Returns bool [R, V].  Top-p sees only the weight that min-p leaves.
    In (logit descending, id ascending) order both filters keep a prefix: a token stays while the weight before
    it is at most the top_p part of the sum (so the one that crosses stays, and the first always does), and its
    place is below top_k.
    """
    vocab = logits.shape[1]
    heavy = None if min_p is None else enough_weight(weight, min_p)
    weight = weight if heavy is None else torch.where(heavy, weight, 0)
    order = torch.sort(logits, dim=-1, descending=True, stable=True).indices
    ordered = weight.gather(1, order)
    before = ordered.cumsum(-1) - ordered
    share = torch.round(top_p * float(1 << SHARE_BITS)).to(torch.int64)
    limit = mul_shift(share, weight.sum(-1), SHARE_BITS)
    count = (before <= limit.unsqueeze(-1)).sum(-1)
    wide_k = top_k.to(torch.int64)
    count = torch.minimum(count, torch.where(wide_k < 1, vocab, wide_k))
    place = torch.arange(vocab, device=logits.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, place)
    kept = rank < count.unsqueeze(-1)
    return kept if heavy is None else kept & heavy

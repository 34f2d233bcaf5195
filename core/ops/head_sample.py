"""`head_sample`: draw one token per row from the products of a row with the output head.

Args: x[N,H] bf16, head (weight [V,H]), temperature[N] f32, top_p[N] f32, top_k[N] i32, seed[N] i64, position[N] i64,
filtered (host hint), greedy (host hint: True only if every row is), min_p[N] f32 or None (0 off) -> token[N] i32
(-1 none)

Composite of `linear`, into f32, and the token of `sample`, in one call because nobody else reads the logits: who finds
the largest one without making them all may.
Reads x bf16 [N, H] and a bf16 or fp8_block32 head [V, H], V below 2^24; the other arguments as `sample`
does, and
  greedy, a host hint: True only if every row is greedy.  It changes no bit.
Writes nothing.  Returns token int32 [N], -1 where a logit of the row is NaN or none is finite at the maximum.
Class P as `sample`'s token, given the logits of `linear`.  Row bits do not depend on N.  Ties: the lowest id, where
logits are equal as `linear` makes them.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch

from tandem.contract.cases import FEW_ROWS, Draw, WeightInput
from tandem.contract.opspec import case, op
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, WeightKind

Tensor = torch.Tensor


@op(
    "head_sample",
    classes={"token": "P"},
    parts=("linear", "sample"),
    attrs=("x", "w", "out", "shape", "layout"),
    reads={"x": frozenset({"bf16"}), "out": frozenset({"f32"})},
    passes=(("linear", {"x": "x", "w": "w", "out": "out", "shape": "shape", "layout": "layout"}),),
    since=(1, 2),
)
def head_sample(
    parts: Any,
    x: Tensor,
    head: PackedWeight,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    seed: Tensor,
    position: Tensor,
    filtered: bool,
    greedy: bool,
    min_p: Tensor | None = None,
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    logits = parts.linear(x, head, torch.float32)
    token: Tensor = parts.sample(logits, temperature, top_p, top_k, seed, position, filtered, min_p)[0]
    return token


def numbers(seed: int, rows: int, greedy: bool, filtered: bool = False) -> dict[str, Any]:
    """What rows are drawn by, for cases and tests; where not all are greedy, each third is."""
    turn = torch.arange(rows)
    warm = torch.where(turn % 3 == 1, 0.0, 0.5 + 0.25 * (turn % 5))
    return {
        "temperature": torch.zeros(rows) if greedy else warm,
        "top_p": torch.where((turn % 2 == 0) & filtered, 0.9, 1.0),
        "top_k": torch.where((turn % 4 == 2) & filtered, 9, -1).to(torch.int32),
        "seed": torch.full((rows,), seed * 7919 - 5, dtype=torch.int64),
        "position": turn * 131 + seed,
        "filtered": filtered,
        "greedy": greedy,
    }


def bf16_head(data: Tensor) -> Any:
    """A head of given numbers, for cases and tests."""
    return WeightInput(WeightKind.HEAD, CanonicalWeight(data.to(torch.bfloat16), None, QFormat.BF16), tuple(data.shape))


def _normal(seed: int, rows: int, vocab: int = 45, depth: int = 20) -> dict[str, Any]:
    draw = Draw(seed)
    head = bf16_head(draw.f32(vocab, depth, scale=depth**-0.5))
    return {"x": draw.bf16(rows, depth), "head": head, **numbers(seed, rows, greedy=True)}


def _exact(seed: int, rows: int, fmt: QFormat, vocab: int = 20, depth: int = 32) -> dict[str, Any]:
    """Small numbers on a grid: every sum is exact in f32, whatever its order, and what is drawn is known."""
    draw = Draw(seed)
    x = (draw.i32(-4, 5, rows, depth) / 4).to(torch.bfloat16)
    if fmt is QFormat.BF16:
        return {"x": x, "head": bf16_head(draw.i32(-8, 9, vocab, depth) / 16)}
    head = draw.weight(WeightKind.HEAD, fmt, vocab, depth)
    head.weight.scale.fill_(125)
    head.weight.data.bitwise_and_(0x8F).bitwise_or_(0x30)  # 0.5 to 1.875
    return {"x": x, "head": head}


@case("head_sample", "greedy", FEW_ROWS)
def _greedy(seed: int, rows: int) -> dict[str, Any]:
    return _normal(seed, rows)


@case("head_sample", "mixed", FEW_ROWS)
def _mixed(seed: int, rows: int) -> dict[str, Any]:
    return _exact(seed, rows, QFormat.BF16) | numbers(seed, rows, greedy=False, filtered=True)


def _claimed(seed: int, fmt: QFormat, filtered: bool, greedy: bool, min_p: bool) -> dict[str, Any]:
    given = _exact(seed, 7, fmt) | numbers(seed, 7, greedy, filtered)
    # The hint allows a min-p above 0 only where rows are filtered, or all are greedy.
    share = torch.arange(7) % 3 * (0.02 if filtered or greedy else 0.0)
    return given | ({"min_p": share} if min_p else {})


_FLAGS = (False, True)
for _fmt, _filtered, _greedy_rows, _min_p in itertools.product(
    (QFormat.BF16, QFormat.FP8_BLOCK32), _FLAGS, _FLAGS, _FLAGS
):
    _name = [_fmt.value, "greedy" if _greedy_rows else "drawn"]
    _name += ["filtered"] * _filtered + ["min_p"] * _min_p
    case("head_sample", "-".join(_name))(
        functools.partial(_claimed, fmt=_fmt, filtered=_filtered, greedy=_greedy_rows, min_p=_min_p)
    )


@case("head_sample", "many-tokens")
def _many(seed: int) -> dict[str, Any]:
    """Tokens of more than one tile."""
    return _normal(seed, 3, 1030, 3)


@case("head_sample", "many-terms")
def _deep(seed: int) -> dict[str, Any]:
    """A depth of more than one tile, a vocabulary of a few tokens."""
    return _normal(seed, 1, 2, 2060)


@case("head_sample", "one-token")
def _narrow(seed: int) -> dict[str, Any]:
    return _normal(seed, 5, 1, 1)


@case("head_sample", "ties")
def _ties(seed: int) -> dict[str, Any]:
    """Every row of the head occurs three times, far apart: the lowest id is the answer."""
    given = _exact(seed, 9, QFormat.BF16, 15)
    return given | {"head": bf16_head(given["head"].weight.data.repeat(3, 1))} | numbers(seed, 9, greedy=True)


@case("head_sample", "all-tokens-equal")
def _plateau(seed: int) -> dict[str, Any]:
    given = _exact(seed, 4, QFormat.BF16, 35)
    given["head"].weight.data[1:] = given["head"].weight.data[0]
    return given | numbers(seed, 4, greedy=True)


@case("head_sample", "unusable-and-zero-rows")
def _special(seed: int) -> dict[str, Any]:
    """Rows of zeros, with NaN and with infinity between good ones."""
    given = _normal(seed, 9)
    infinity = float("inf")
    given["x"][1], given["x"][3, 11], given["x"][5, 0], given["x"][7, 19] = 0.0, float("nan"), infinity, -infinity
    return given


@case("head_sample", "heads-with-large-and-small-rows")
def _uneven(seed: int) -> dict[str, Any]:
    """Norms from 2^-60 to 2^30, in one scale block and beside it; a row of zeros."""
    given = _normal(seed, 6)
    sizes = 2.0 ** torch.tensor([0, -60, 4, -20, 30, 0, -7])
    given["head"].weight.data.mul_(sizes.repeat(7)[:45, None])
    given["head"].weight.data[40] = 0.0
    return given

"""Greedy tokens by the screen of the head: always those of `linear` and `sample`, whatever head and rows hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.cpu_sets import SETS, threads, using

from tandem.backends.cpu import native
from tandem.backends.cpu.backend import CpuBackend
from tandem.backends.cpu.kernels import _products
from tandem.backends.cpu.screens import Screen
from tandem.checkpoint.quantize import quantize_fp8_blocks
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, WeightKind
from tandem.errors import LayoutError
from tandem.ops.head_sample import numbers
from tandem.ops.numerics import e4m3_decode, ue8m0_value

Tensor = torch.Tensor
BACKEND = CpuBackend(True)
ROWS = (1, 2, 3, 5, 7, 8, 9, 15, 16)
NAN, INF = float("nan"), float("inf")


def op(name: str) -> Callable[..., Any]:
    found = BACKEND.implementation(name)
    assert found is not None, name
    return found


def packed(head: Tensor, kind: WeightKind = WeightKind.HEAD, backend: CpuBackend = BACKEND) -> PackedWeight:
    fmt = QFormat.F32 if head.dtype is torch.float32 else QFormat.BF16
    return backend.pack_weight(kind, CanonicalWeight(head, None, fmt), tuple(head.shape))


def screen_of(head: PackedWeight) -> Screen:
    found: Screen = head.token.screen
    return found


def approximate(x: Tensor, head: PackedWeight) -> Tensor:
    """Products with the screen."""
    made = screen_of(head)
    weight = CanonicalWeight(made.codes, made.scale, QFormat.FP8_BLOCK32)
    logits: Tensor = op("linear")(x, BACKEND.pack_weight(WeightKind.LINEAR, weight, head.shape), torch.float32)
    return logits


def wanted(x: Tensor, head: PackedWeight) -> Tensor:
    given = numbers(3, x.shape[0], greedy=True)
    plain = (given[name] for name in ("temperature", "top_p", "top_k", "seed", "position"))
    token: Tensor = op("sample")(op("linear")(x, head, torch.float32), *plain, False)[0]
    return token


def found(x: Tensor, head: PackedWeight) -> Tensor:
    token: Tensor = op("head_sample")(x, head, **numbers(3, x.shape[0], greedy=True))
    return token


def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that are called from here on."""
    names: list[str] = []
    run = native.run

    def listen(name: str, *arguments: Any) -> None:
        names.append(name)
        run(name, *arguments)

    monkeypatch.setattr(native, "run", listen)
    return names


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def powers(seed: int, low: int, high: int, *shape: int) -> Tensor:
    return 2.0 ** torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).float()


def with_value(head: Tensor, value: float) -> Tensor:
    head[head.shape[0] // 2, head.shape[1] // 2] = value
    return head


def near(vocab: int, depth: int) -> Tensor:
    """Rows that differ from one another by the last place of a few elements."""
    row = normal(9, 1, depth).bfloat16().view(torch.int16)
    return (row + torch.randint(-1, 2, (vocab, depth), generator=torch.Generator().manual_seed(2)).short()).view(
        torch.bfloat16
    )


HEADS: dict[str, Callable[[int, int], Tensor]] = {
    "normal": lambda v, k: normal(1, v, k) / k**0.5,
    "all rows equal": lambda v, k: normal(1, 1, k).expand(v, k),
    "rows equal far apart": lambda v, k: normal(1, -(-v // 3), k).repeat(3, 1)[:v],
    "a unit in the last place apart": near,
    "two values": lambda v, k: normal(1, v, k).sign() / 4,
    "few numbers": lambda v, k: torch.where(normal(1, v, k) > 2, normal(2, v, k), 0.0),
    "norms far apart": lambda v, k: normal(1, v, k) * powers(2, -60, 30, v, 1),
    "numbers far apart": lambda v, k: normal(1, v, k) * powers(2, -40, 40, v, k),
    "outliers": lambda v, k: normal(1, v, k) * torch.where(normal(2, 1, k) > 1.5, 300.0, 1.0),
    "tiny": lambda v, k: normal(1, v, k) * 2.0**-100,
    "subnormal": lambda v, k: normal(1, v, k) * 2.0**-130,
    "subnormal among others": lambda v, k: normal(1, v, k) * powers(2, -140, -110, v, k),
    "large": lambda v, k: normal(1, v, k) * 2.0**90,
    "larger than scales": lambda v, k: normal(1, v, k) * 2.0**118,
    "negative": lambda v, k: -normal(1, v, k).abs(),
    "zeros of both signs": lambda v, k: normal(1, v, k) * 0.0,
    "a NaN": lambda v, k: with_value(normal(1, v, k), NAN),
    "an infinity": lambda v, k: with_value(normal(1, v, k), INF),
}
INPUTS: dict[str, Callable[[int, int], Tensor]] = {
    "normal": lambda t, k: normal(4, t, k),
    "outliers": lambda t, k: normal(4, t, k) * torch.where(normal(5, 1, k) > 2.0, 1000.0, 1.0),
    "rows of any size": lambda t, k: normal(4, t, k) * powers(5, -120, 110, t, 1),
    "numbers of any size": lambda t, k: normal(4, t, k) * powers(5, -130, 20, t, k),
    "zero rows": lambda t, k: normal(4, t, k) * (torch.arange(t) % 2).unsqueeze(1),
    "quarters": lambda t, k: (normal(4, t, k) * 4).round() / 4,
    "NaN": lambda t, k: with_value(normal(4, t, k), NAN),
    "infinity": lambda t, k: with_value(normal(4, t, k), -INF),
    "the largest number": lambda t, k: with_value(normal(4, t, k), 3.38e38),
}
SHAPES = [(1, 1), (33, 1), (131, 100), (70, 32), (1100, 160), (3001, 40), (97, 2100)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", HEADS)
def test_tokens_are_those_of_the_whole_head(kind: str, shape: tuple[int, int]) -> None:
    head = packed(HEADS[kind](*shape).bfloat16())
    for number, make in enumerate(INPUTS.values()):
        x = make(ROWS[number % len(ROWS)], shape[1]).bfloat16()
        for name in SETS:
            with using(name):
                assert found(x, head).tolist() == wanted(x, head).tolist()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("rows", ROWS)
def test_tokens_on_every_set_with_any_number_of_threads(rows: int, count: int) -> None:
    """Of a large vocabulary, whose parts the threads share; rows alone, and again."""
    head = packed((normal(1, 20_011, 96) / 8).bfloat16())
    x = normal(rows, rows, 96).bfloat16()
    expected = wanted(x, head).tolist()
    for name in SETS:
        with using(name), threads(count):
            assert found(x, head).tolist() == expected
            assert [int(found(row, head)) for row in x.split(1)] == expected
            assert found(x, head).tolist() == expected


def test_rows_that_are_left_among_others() -> None:
    """Rows that take the whole head, which are brought together for it, between rows that do not."""
    head = packed((normal(1, 5000, 96) / 8).bfloat16())
    x = normal(7, 16, 96).bfloat16()
    x[[0, 3, 9, 15]], x[5, 2], x[14, 95] = 0.0, NAN, INF
    expected = wanted(x, head).tolist()
    assert [expected[t] for t in (0, 3, 5, 9, 14, 15)] == [0, 0, -1, 0, -1, 0] and expected[1] > 0
    for rows in (16, 7):
        assert found(x[:rows], head).tolist() == expected[:rows]


def test_the_screen_prefers_another_token() -> None:
    """Two of every four columns round so that the second row, which is the best, comes out below the first."""
    one, two = (torch.tensor(pair).repeat(16) for pair in ([1.0703125, 1.0703125], [1.1796875, 1.0546875]))
    head = packed(torch.cat((-torch.ones(40, 32), one[None], -torch.ones(60, 32), two[None])).bfloat16())
    x = torch.ones(1, 32).bfloat16()
    exact, screened = op("linear")(x, head, torch.float32)[0], approximate(x, head)[0]
    assert exact[101] > exact[40] and screened[101] < screened[40]
    assert found(x, head).tolist() == [101]


@pytest.mark.parametrize("place", [0, 1024, 20_010])
def test_of_equal_tokens_the_first(place: int) -> None:
    """The best row stands at three places, and a copy a last place smaller before them."""
    head = normal(1, 20_011, 96).bfloat16()
    x = normal(2, 1, 96).bfloat16()
    head[[place, 20_009, 20_010]] = x * 4
    if place:
        head[place - 1] = (x * 4).view(torch.int16).sub(1).view(torch.bfloat16)
    assert found(x, packed(head)).tolist() == [place] == wanted(x, packed(head)).tolist()


def values_of(made: Screen, shape: tuple[int, ...]) -> Tensor:
    """What the codes stand for, f64."""
    spread = ue8m0_value(made.scale).repeat_interleave(32, 0).repeat_interleave(32, 1)[: shape[0], : shape[1]]
    return e4m3_decode(made.codes).double() * spread.double()


@pytest.mark.parametrize("kind", [kind for kind in HEADS if kind not in ("a NaN", "an infinity")])
def test_the_bound_holds(kind: str) -> None:
    """As csrc/cpu/ops/head_greedy.cpp promises it, in float64; and it is no larger than that."""
    head = HEADS[kind](131, 100).bfloat16()
    held = packed(head)
    made, exact = screen_of(held), head.double()
    values = values_of(made, held.shape)
    lost = 100 * 2.0**-24
    sums = lost / (1.0 - lost) + 2.0**-20
    apart, own, theirs = (part.norm(dim=1) for part in (exact - values, exact, values))
    bound = made.bound.double()
    promised = (apart + sums * (own + theirs) + 2.0**-100) * (1 + 2.0**-21)
    assert (bound[:131] >= promised).all() and (bound[:131] <= promised * (1 + 2.0**-20)).all()
    assert made.bound.shape == (192,) and (bound[131:] == 0).all()
    for name in SETS:
        with using(name):
            for make in INPUTS.values():
                x = make(3, 100).bfloat16()
                length = x.double().norm(dim=1, keepdim=True)
                radius = bound[:131] * (length + 2.0**-90) + 2.0**-90
                off = (op("linear")(x, held, torch.float32).double() - approximate(x, held).double()).abs()
                serves = torch.isfinite(radius) & (radius < 2.0**98)
                overflown = ~torch.isfinite(approximate(x, held))
                assert ((off <= radius) | ~serves | overflown).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_screen_is_the_fp8_of_checkpoints(shape: tuple[int, int]) -> None:
    head = (normal(1, *shape) * powers(3, -3, 3, shape[0], 1)).bfloat16()
    codes, scale = quantize_fp8_blocks(head.float())
    for name in SETS:
        for count in (1, 2):
            with using(name), threads(count):
                made = screen_of(packed(head))
            assert torch.equal(made.codes, codes.view(torch.uint8)) and torch.equal(made.scale, scale.view(torch.uint8))
            assert torch.equal(made.bound, screen_of(packed(head)).bound)


def test_what_scales_do_not_reach_is_left_out() -> None:
    """A block that holds NaN or too large a number has codes 0; the row with it an infinite bound, others theirs."""
    head = normal(1, 64, 64).bfloat16()
    head[3, 40], head[40, 5], head[41, 6] = NAN, INF, 2.0**120
    made = screen_of(packed(head))
    left_out = torch.zeros(64, 64, dtype=torch.bool)
    left_out[:32, 32:], left_out[32:, :32] = True, True
    assert ((made.codes == 0) | ~left_out).all() and (made.codes[~left_out] != 0).double().mean() > 0.9
    assert torch.isinf(made.bound).nonzero().flatten().tolist() == [3, 40]
    assert made.bound[41] >= 2.0**120 and made.bound[:3].max() < 20
    assert int(made.scale.min()) >= 27 and int(made.scale.max()) <= 227


def test_small_numbers_have_small_scales() -> None:
    """Scales end at 2^-100, and the bound stays a share of the norm until there."""
    for exponent in (-20, -60, -90):
        made = screen_of(packed((normal(1, 32, 64) * 2.0**exponent).bfloat16()))
        assert (made.bound[:32] < 2.0**exponent).all()
    assert screen_of(packed((normal(1, 32, 64) * 2.0**-120).bfloat16())).scale.tolist() == [[27, 27]]


def test_nothing_else_is_read_or_written() -> None:
    """NaN behind the head and the screen, scratch full of NaN, guards around the tokens."""
    vocab, depth, rows = 131, 100, 3
    head, x = normal(1, vocab, depth).bfloat16(), normal(2, rows, depth).bfloat16()
    held = packed(head)
    made, poisoned = screen_of(held), torch.full((2 * vocab * depth,), NAN).bfloat16()
    poisoned[: vocab * depth] = head.flatten()
    codes = torch.full((2 * vocab * depth,), 0xFF, dtype=torch.uint8)
    codes[: vocab * depth] = made.codes.flatten()
    token = torch.full((rows + 2,), 77, dtype=torch.int32)
    logits, ids = torch.full((rows + 2, vocab), NAN), torch.full((rows + 2, vocab), -5, dtype=torch.int32)
    room = torch.full_like(_products.room(rows, depth), 0xFF)
    scratch = token[1:-1], logits[1:-1], ids[1:-1], room
    arrays = x, poisoned[: vocab * depth], codes[: vocab * depth], made.scale, made.bound
    for name in SETS:
        with using(name):
            native.library_for(name).run("head_greedy", *arrays, *scratch, rows, depth, vocab)
        assert token[1:-1].tolist() == wanted(x, held).tolist() and token[[0, -1]].tolist() == [77, 77]
        assert logits[[0, -1]].isnan().all() and (ids[[0, -1]] == -5).all()
    assert torch.equal(held.token.stored.data, head)


def test_a_screen_is_written_whole_and_nothing_beside_it() -> None:
    head = normal(1, 70, 40).bfloat16()
    made = screen_of(packed(head))
    guarded = [torch.full((part.numel() + 128,), 99, dtype=part.dtype) for part in made]
    inner = [guard[64:-64].view(part.shape) for guard, part in zip(guarded, made, strict=True)]
    for name in SETS:
        for part in inner:
            part.fill_(55)
        native.library_for(name).run("head_screen", head, *inner, 70, 40)
        assert all(torch.equal(part, own) for part, own in zip(inner, made, strict=True))
        assert all((guard[:64] == 99).all() and (guard[-64:] == 99).all() for guard in guarded)


def test_when_the_screen_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy rows, not too many, of a bf16 head; all else multiplies and draws."""
    data, x = normal(1, 300, 64), normal(2, 17, 64).bfloat16()
    head = packed(data.bfloat16())
    names = listed(monkeypatch)
    others = {
        "drawn": (x[:3], head, numbers(1, 3, greedy=False)),
        "many": (x, head, numbers(1, 17, greedy=True)),
        "f32": (x[:3], packed(data), numbers(1, 3, greedy=True)),
        "linear": (x[:3], packed(data.bfloat16(), WeightKind.LINEAR), numbers(1, 3, greedy=True)),
    }
    names.clear()
    op("head_sample")(x[:16], head, **numbers(1, 16, greedy=True))
    assert names == ["head_greedy"]
    for rows, weight, given in others.values():
        names.clear()
        token = op("head_sample")(rows, weight, **given)
        assert names[1] == "sample" and names[0].startswith("linear") and len(names) == 2
        plain = (given[name] for name in ("temperature", "top_p", "top_k", "seed", "position", "filtered"))
        assert torch.equal(token, op("sample")(op("linear")(rows, weight, torch.float32), *plain)[0])


def test_what_a_head_takes_and_gives_back() -> None:
    data = normal(1, 100, 70).bfloat16()
    head, plain = packed(data), packed(data, WeightKind.LINEAR)
    assert plain.nbytes == 100 * 70 * 2 and head.nbytes == plain.nbytes + 100 * 70 + 4 * 3 + 128 * 4
    assert head.layout == plain.layout and repr(head) == "PackedWeight(head, bf16, (100, 70), cpu.stored)"
    assert torch.equal(BACKEND.unpack_weight(head).data, data)
    x = normal(2, 3, 70).bfloat16()
    assert torch.equal(op("linear")(x, head, torch.float32), op("linear")(x, plain, torch.float32))
    composites = packed(data, backend=CpuBackend(False))
    assert composites.nbytes == plain.nbytes and isinstance(composites.token, CanonicalWeight)


def test_wrong_arguments_are_refused() -> None:
    head, x = packed(normal(1, 300, 64).bfloat16()), normal(2, 3, 64).bfloat16()
    given = numbers(1, 3, greedy=True)
    wrong: list[tuple[Tensor, dict[str, Any]]] = [
        (x[:, :32], given),
        (x.float(), given),
        (x, given | {"temperature": torch.zeros(2)}),
        (x, given | {"min_p": torch.zeros(4)}),
    ]
    for rows, numbers_of_rows in wrong:
        with pytest.raises(LayoutError) as caught:
            op("head_sample")(rows, head, **numbers_of_rows)
        assert all(caught.value.to_dict().values())
    made, none = screen_of(head), np.zeros(0)
    assert none.size == 0 and op("head_sample")(x[:0], head, **numbers(1, 0, greedy=True)).shape == (0,)
    scratch = torch.empty(17, dtype=torch.int32), torch.empty(17, 300), torch.empty(17, 300, dtype=torch.int32)
    room = _products.room(17, 64)
    arrays = normal(2, 17, 64).bfloat16(), head.token.stored.data, *made, *scratch, room
    for sizes in ((17, 64, 300), (-1, 64, 300), (1, 0, 300), (1, 1 << 21, 300), (1, 64, 0)):
        with pytest.raises(LayoutError, match="a dimension is negative"):
            native.run("head_greedy", *arrays, *sizes)
    with pytest.raises(LayoutError, match="NULL"):
        native.run("head_greedy", *arrays[:-1], None, 1, 64, 300)
    with pytest.raises(LayoutError, match="a dimension is negative"):
        native.run("head_screen", head.token.stored.data, *made, 300, 0)

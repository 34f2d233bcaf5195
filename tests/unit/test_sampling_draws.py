"""The sampling ops as a whole: the law, the invariances, hand-made draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tandem.ops.process_logits import process_logits
from tandem.ops.sample import sample
from tandem.ops.top_logprobs import top_logprobs
from tandem.sampling.params import SamplingParams

Tensor = torch.Tensor


def draw(
    logits: Tensor,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = -1,
    seed: Tensor | int = 0,
    position: Tensor | int = 0,
    filtered: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = logits.shape[0]
    return sample(
        logits,
        torch.full((rows,), temperature),
        torch.full((rows,), top_p),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.as_tensor(seed).expand(rows),
        torch.as_tensor(position).expand(rows),
        filtered,
    )


def normal(rows: int, vocab: int, seed: int, spread: float = 3.0) -> Tensor:
    return torch.randn((rows, vocab), generator=torch.Generator().manual_seed(seed)) * spread


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bits."""
    return a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize(("seed", "position", "token"), [(0, 0, 8), (1234, 0, 7), (1234, 7, 3)])
def test_token_from_a_known_uniform(seed, position, token):
    """Ten equal tokens and the uniforms 0.883, 0.731 and 0.354: the token is the first decimal digit."""
    tokens, raw, processed = draw(torch.zeros(1, 10), seed=seed, position=position)
    assert tokens.tolist() == [token] and tokens.dtype == torch.int32
    assert raw.tolist() == processed.tolist() == [np.float32(-math.log(10))]


def seed_of(uniform: int) -> Tensor:
    """The seed that draws this 53-bit integer at position 0: the hash run backwards (it is a bijection)."""
    word = 2**64
    z = uniform << 11
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        z ^= (z >> shift) ^ (z >> 2 * shift)
        z = z * pow(factor, -1, word) % word
    seed = (z - 0x9E3779B97F4A7C15) % word
    return torch.tensor(seed - word if seed >> 63 else seed)


BANNED = float("-inf")


@pytest.mark.parametrize(
    ("uniform", "logits", "token"),
    [
        (0, [BANNED, 0.0, 0.0], 1),
        (2**53 - 1, [0.0, 0.0, BANNED], 1),
        (2**52 - 1, [BANNED, 0.0, 0.0], 1),
        (2**52, [BANNED, 0.0, BANNED, 0.0], 3),
    ],
)
def test_uniforms_at_the_edges(uniform, logits, token):
    """Two tokens share [0, 2^53) in halves; the edge belongs to the second; banned ones get nothing."""
    assert draw(torch.tensor([logits]), seed=seed_of(uniform))[0].tolist() == [token]


def chi_square_tail(statistic: float, degrees: int) -> float:
    """P(chi-square > statistic) for an even number of degrees of freedom."""
    half = statistic / 2
    return math.exp(-half) * sum(half**k / math.factorial(k) for k in range(degrees // 2))


def tail_of(tokens: Tensor, probabilities: np.ndarray) -> float:
    counts = np.bincount(tokens.numpy(), minlength=len(probabilities))
    live = probabilities > 0
    assert counts[~live].sum() == 0
    expected = probabilities[live] * counts.sum()
    statistic = float(((counts[live] - expected) ** 2 / expected).sum())
    return chi_square_tail(statistic, int(live.sum()) - 1)


LAW_LOGITS = [0.3, 2.0, -1.0, 1.1, 0.0, 1.9, -0.4, 0.8, 1.5]


@pytest.mark.parametrize("varied", ["position", "seed"])
@pytest.mark.parametrize(
    ("temperature", "top_k", "left"), [(1.0, -1, range(9)), (0.6, -1, range(9)), (1.7, 5, (1, 3, 5, 7, 8))]
)
def test_tokens_follow_the_law(varied, temperature, top_k, left):
    """20000 draws over positions of one seed, or seeds at one position; softmax in float64 is the law."""
    count = torch.arange(20000)
    where: dict[str, Any] = {"seed": 99, "position": 1000, varied: count}
    logits = torch.tensor([LAW_LOGITS]).repeat(len(count), 1)
    tokens = draw(logits, temperature, 1.0, top_k, **where)[0]
    weight = np.zeros(9)
    weight[list(left)] = np.exp(np.array(LAW_LOGITS)[list(left)] / temperature)
    assert tail_of(tokens, weight / weight.sum()) > 1e-6
    other = np.exp(np.array(LAW_LOGITS) * 0.75 / temperature) * (weight > 0)
    assert tail_of(tokens, other / other.sum()) < 1e-6  # the test can tell a temperature a third off


def test_rows_do_not_depend_on_their_batch():
    """Each row gives the same bits alone, in the batch and in the reversed batch."""
    vocab, rows = 40001, 6
    logits = normal(rows, vocab, 3)
    own = {
        "temperature": torch.tensor([0.0, 0.7, 1.0, 1.3, 1.0, 1.0]),
        "top_p": torch.tensor([1.0, 0.9, 1.0, 0.5, 0.99, 1.0]),
        "top_k": torch.tensor([-1, 50, -1, -1, 7, -1], dtype=torch.int32),
        "seed": torch.tensor([5, 5, -3, 2**62, 0, 1]),
        "position": torch.arange(rows) * 17,
    }
    order = torch.arange(rows - 1, -1, -1)
    whole = sample(logits, **own, filtered=True)
    back = sample(logits[order], **{name: value[order] for name, value in own.items()}, filtered=True)
    table = process_logits(logits, own["temperature"], own["top_p"], own["top_k"], True)
    for row in range(rows):
        one = slice(row, row + 1)
        alone = sample(logits[one], **{name: value[one] for name, value in own.items()}, filtered=True)
        for got, full, turned in zip(alone, whole, back, strict=True):
            assert same(got, full[one]) and same(got, turned[order][one])
        numbers = [own[name][one] for name in ("temperature", "top_p", "top_k")]
        assert same(process_logits(logits[one], *numbers, True), table[one])


def test_the_filter_hint_changes_no_bit():
    logits = normal(20, 999, 4)
    logits[3, 5:] = float("-inf")
    for temperature in (0.0, 1.0, 0.4):
        for got, hinted in zip(
            draw(logits, temperature, position=7),
            draw(logits, temperature, position=7, filtered=False),
            strict=True,
        ):
            assert same(got, hinted)


def test_logits_are_not_modified():
    logits = normal(3, 50, 8)
    before = logits.clone()
    draw(logits, 0.5, 0.8, 10)
    assert same(logits, before)


def test_logprobs_are_those_of_the_tables():
    logits = normal(30, 300, 9)
    rows = len(logits)
    token, raw, processed = draw(logits, 0.8, 0.9, 40, position=torch.arange(rows))
    numbers = [
        torch.full((rows,), 0.8),
        torch.full((rows,), 0.9),
        torch.full((rows,), 40, dtype=torch.int32),
    ]
    at = token.to(torch.int64).unsqueeze(-1)
    assert same(process_logits(logits, *numbers, True).gather(1, at).squeeze(-1), processed)
    ones = torch.ones(rows)
    table = process_logits(logits, ones, ones, torch.full((rows,), -1, dtype=torch.int32), False)
    assert same(table.gather(1, at).squeeze(-1), raw)
    ids, best = top_logprobs(table, 300)
    found = best[ids == token.unsqueeze(-1)]
    assert same(found, raw)


def test_greedy_starts_below_1e_5_on_host_and_device():
    """Two equal tokens: greedy always takes the first, anything else takes both over 64 positions."""
    logits = torch.zeros(64, 2)
    below = float(np.nextafter(np.float32(1e-5), np.float32(0)))
    for temperature, greedy in [(0.0, True), (below, True), (1e-5, False), (1.0, False)]:
        tokens, raw, processed = draw(logits, temperature, position=torch.arange(64))
        assert (tokens.sum().item() == 0) == greedy
        assert SamplingParams(temperature=temperature).is_greedy == greedy
        assert (processed == (0.0 if greedy else np.float32(math.log(0.5)))).all()
        assert (raw == np.float32(math.log(0.5))).all()


def test_greedy_is_the_lowest_id_of_the_maximum_under_any_filter():
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [float("-inf"), -5.0, -7.0, -5.0]])
    assert draw(logits, 0.0, 0.1, 1)[0].tolist() == [1, 1]
    one = torch.ones(2, dtype=torch.int32)
    table = process_logits(logits, torch.zeros(2), torch.full((2,), 0.1), one, True)
    low = float("-inf")
    assert table.tolist() == [[low, 0.0, low, low]] * 2


def test_unusable_rows_give_minus_one():
    logits = torch.zeros(4, 6)
    logits[0] = float("-inf")
    logits[1, 5] = float("inf")
    logits[2, 0] = float("nan")
    for temperature in (0.0, 1.0):
        token, raw, processed = draw(logits, temperature)
        assert token[:3].tolist() == [-1] * 3 and token[3] >= 0
        assert torch.isnan(raw[:3]).all() and torch.isnan(processed[:3]).all()
        assert raw[3] == np.float32(-math.log(6))


def test_extreme_temperatures_and_logits():
    """A temperature whose inverse is subnormal or 0 makes allowed tokens equal and never revives a banned one."""
    logits = torch.tensor([[3e38, float("-inf"), -3e38]]).repeat(64, 1)
    token, _, _ = draw(logits, 1.0, position=torch.arange(64))
    assert token.tolist() == [0] * 64
    logits = torch.tensor([[5.0, float("-inf"), 1.0]]).repeat(64, 1)
    for temperature in (3.4e38, float("inf")):
        token, _, processed = draw(logits, temperature, position=torch.arange(64))
        assert set(token.tolist()) == {0, 2}
        assert (processed == np.float32(math.log(0.5))).all()


class _NoHostRead(TorchDispatchMode):
    """Fails on operations that read a device value or whose result shape depends on one."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal.")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if any(name in str(func) for name in self.FORBIDDEN):
            raise RuntimeError(f"{func} in an op that is captured")
        return func(*args, **(kwargs or {}))


def test_ops_can_be_captured():
    from tandem.contract.opspec import OP_TABLE

    logits = normal(3, 64, 1)
    with _NoHostRead():
        draw(logits, 0.9, 0.9, 5)
        for name in ("process_logits", "top_logprobs", "adjust_logits", "mask_logits"):
            for item in OP_TABLE[name].cases:
                OP_TABLE[name].reference(**item.build(1))
        with pytest.raises(RuntimeError, match="captured"):
            logits.sum().item()

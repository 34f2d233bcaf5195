"""Sampling ops on their cases, against row-by-row Python: big integers for tokens, float64 for logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tandem.ops  # noqa: F401  (declares every op)
from tandem.contract.opspec import OP_TABLE, Case

Tensor = torch.Tensor
WORD = 2**64


def cases(op: str) -> Callable[[Any], Any]:
    items = OP_TABLE[op].cases
    assert len({item.name for item in items}) == len(items) > 0
    return pytest.mark.parametrize("item", items, ids=[item.name for item in items])


def splitmix(state: int) -> int:
    """One output of SplitMix64, after Steele, Lea and Flood."""
    z = (state + 0x9E3779B97F4A7C15) % WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
    return z ^ z >> 31


def uniform(seed: int, position: int) -> int:
    c = 3 * position * 0x9E3779B97F4A7C15 % WORD
    return splitmix((seed + (c ^ c << 13)) % WORD) >> 11


class Row:
    """One row by the letter of the contract; None where nothing can be drawn."""

    def __init__(self, logits: np.ndarray, temperature: float, top_p: float, top_k: int) -> None:
        best = max(logits.tolist())
        self.usable = not np.isnan(logits).any() and math.isfinite(best)
        if not self.usable:
            return
        order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
        greedy = np.float32(temperature) < np.float32(1e-5)
        inverse = np.float32(1) if greedy else np.float32(1) / np.float32(temperature)
        self.raw = (logits - np.float32(best)).astype(np.float64)
        d = (logits - np.float32(best)) * inverse
        self.scaled = d.astype(np.float64)
        # The contract takes exp as given; it is the only number here that comes from the library.
        weight = [int(e * 2.0**30) for e in torch.exp(torch.from_numpy(d)).double().tolist()]
        limit = round(float(np.float32(top_p)) * 2**32) * sum(weight) >> 32
        self.kept, before = [], 0
        for rank, token in enumerate(order):
            if before > limit or (top_k >= 1 and rank >= top_k) or (greedy and rank >= 1):
                break
            self.kept.append(token)
            before += weight[token]
        self.weight = [weight[i] if i in set(self.kept) else 0 for i in range(len(logits))]

    def token(self, seed: int, position: int) -> int:
        target = uniform(seed, position) * sum(self.weight) >> 53
        total = 0
        for token, weight in enumerate(self.weight):
            total += weight
            if total > target:
                return token
        raise AssertionError("the target is below the sum")

    def logprobs(self) -> np.ndarray:
        out = np.full(len(self.scaled), -np.inf)
        out[self.kept] = log_softmax(self.scaled[self.kept])
        return out

    def raw_logprobs(self) -> np.ndarray:
        return log_softmax(self.raw)


def log_softmax(d: np.ndarray) -> np.ndarray:
    others = sorted(d.tolist())[:-1]  # one of the maxima is 0 and is left to log1p
    return d - math.log1p(math.fsum(math.exp(x) for x in others))


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    """Largest distance in units in the last place of float32; infinite values must be equal."""
    assert got.dtype == np.float32 and not np.isnan(got).any()
    finite = np.isfinite(exact)
    assert (got[~finite] == exact[~finite]).all()
    unit = np.spacing(np.abs(exact[finite]).astype(np.float32)).astype(np.float64)
    return float(np.max(np.abs(got[finite].astype(np.float64) - exact[finite]) / unit, initial=0.0))


def rows_of(arguments: dict[str, Any]) -> list[Row]:
    names = ("logits", "temperature", "top_p", "top_k")
    columns = [arguments["logits"].numpy(), *(arguments[name].tolist() for name in names[1:])]
    return [Row(*numbers) for numbers in zip(*columns, strict=True)]


@cases("sample")
@pytest.mark.parametrize("seed", range(3))
def test_sample(item: Case, seed: int):
    arguments = item.build(seed)
    token, raw, processed = (out.numpy() for out in OP_TABLE["sample"].reference(**arguments))
    draws = zip(arguments["seed"].tolist(), arguments["position"].tolist(), strict=True)
    for i, (row, draw) in enumerate(zip(rows_of(arguments), draws, strict=True)):
        if not row.usable:
            assert token[i] == -1 and np.isnan(raw[i]) and np.isnan(processed[i])
            continue
        expected = row.token(*draw)
        assert token[i] == expected
        assert ulps(raw[i : i + 1], row.raw_logprobs()[expected : expected + 1]) <= 4
        assert ulps(processed[i : i + 1], row.logprobs()[expected : expected + 1]) <= 4


@cases("process_logits")
@pytest.mark.parametrize("seed", range(3))
def test_process_logits(item: Case, seed: int):
    arguments = item.build(seed)
    table = OP_TABLE["process_logits"].reference(**arguments).numpy()
    for got, row in zip(table, rows_of(arguments), strict=True):
        if row.usable:
            assert ulps(got, row.logprobs()) <= 4
        else:
            assert np.isnan(got).all()


@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
def test_process_logits_at_a_large_vocabulary(spread: float):
    """129280 tokens, from nearly flat to one that holds almost everything."""
    logits = torch.randn((2, 129280), generator=torch.Generator().manual_seed(2)) * spread
    arguments = {
        "logits": logits,
        "temperature": torch.ones(2),
        "top_p": torch.ones(2),
        "top_k": torch.full((2,), -1, dtype=torch.int32),
    }
    table = OP_TABLE["process_logits"].reference(**arguments, filtered=False).numpy()
    for got, row in zip(table, logits.numpy(), strict=True):
        assert ulps(got, log_softmax((row - row.max()).astype(np.float64))) <= 4


@cases("top_logprobs")
@pytest.mark.parametrize("seed", range(3))
def test_top_logprobs(item: Case, seed: int):
    arguments = item.build(seed)
    n = arguments["n"]
    ids, best = OP_TABLE["top_logprobs"].reference(**arguments)
    assert ids.dtype == torch.int32
    for got_ids, got, row in zip(ids.tolist(), best.tolist(), arguments["values"].tolist(), strict=True):
        choices = [i for i, value in enumerate(row) if not math.isnan(value) and value != -math.inf]
        expected = sorted(choices, key=lambda i: (-row[i], i))[:n]
        missing = n - len(expected)
        assert got_ids == expected + [-1] * missing
        assert got == [row[i] for i in expected] + [-math.inf] * missing


@cases("adjust_logits")
@pytest.mark.parametrize("seed", range(3))
def test_adjust_logits(item: Case, seed: int):
    arguments = item.build(seed)
    logits = arguments["logits"]
    expected = logits.numpy().copy()
    for row, token, value in zip(*(arguments[name].tolist() for name in ("row", "token", "value")), strict=True):
        if row >= 0:
            expected[row, token] += np.float32(value)
    assert OP_TABLE["adjust_logits"].reference(**arguments) is None
    assert logits.numpy().tobytes() == expected.tobytes()


def test_adjust_logits_adds_up_values_of_one_place():
    logits = torch.zeros(2, 3)
    place = torch.ones(3, dtype=torch.int32)
    OP_TABLE["adjust_logits"].reference(logits, place, place + 1, torch.tensor([1.0, 2.0, 4.0]))
    assert logits.tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, 7.0]]


@cases("mask_logits")
@pytest.mark.parametrize("seed", range(3))
def test_mask_logits(item: Case, seed: int):
    arguments = item.build(seed)
    logits = arguments["logits"]
    expected = logits.numpy().copy()
    for row, words in enumerate(arguments["bits"].tolist()):
        for token in range(expected.shape[1]):
            if not words[token // 32] % 2**32 >> token % 32 & 1:
                expected[row, token] = -np.inf
    assert OP_TABLE["mask_logits"].reference(**arguments) is None
    assert logits.numpy().tobytes() == expected.tobytes()

"""The counter hash: published SplitMix64 outputs, published uniforms, host against device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tandem.ops import _fixed_cdf
from tandem.sampling import rng

GOLDEN = 0x9E3779B97F4A7C15

# The first outputs of SplitMix64 seeded with 1234567, as published with its reference code.
SPLITMIX64 = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


def as_int64(values: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.uint64).view(np.int64))


def test_hash_is_splitmix64():
    assert [rng.hash64(1234567 + n * GOLDEN) for n in range(5)] == SPLITMIX64
    states = as_int64([(1234567 + n * GOLDEN) % 2**64 for n in range(5)])
    assert _fixed_cdf.hash64(states).numpy().view(np.uint64).tolist() == SPLITMIX64


@pytest.mark.parametrize(
    ("seed", "position", "case", "expected"),
    [
        (0, 0, 0, 0.8833108082136426),
        (1234, 0, 0, 0.730666524540624),
        (1234, 7, 0, 0.35423550928347436),
        (1234, 7, 1, 0.2336706822575918),
    ],
)
def test_published_uniforms(seed, position, case, expected):
    assert rng.uniform(seed, position, case) == expected
    drawn = _fixed_cdf.uniform53(torch.tensor([seed]), torch.tensor([position]), case)
    assert drawn.item() / 2**53 == expected


def test_published_uniform_of_a_plain_xor_key():
    assert (rng.hash64(1234 ^ (3 * 7 + 2) * GOLDEN % 2**64) >> 11) / 2**53 == 0.15946601078533218


def test_device_and_arrays_agree_with_python_integers():
    generator = np.random.default_rng(5)
    seeds = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
    seeds += generator.integers(0, 2**64, 300, dtype=np.uint64).tolist()
    positions = [0, 1, 2**20, 2**31, 2**40, *generator.integers(0, 2**21, 300).tolist()]
    expected = [rng.uniform53(seed, position) for seed, position in zip(seeds, positions, strict=True)]
    assert rng.uniform53_array(np.array(seeds, np.uint64), positions).tolist() == expected
    assert _fixed_cdf.uniform53(as_int64(seeds), torch.tensor(positions)).tolist() == expected
    assert all(0 <= value < 2**53 for value in expected)


def test_fresh_seeds_differ_and_fit():
    seeds = {rng.fresh_seed() for _ in range(20)}
    assert len(seeds) == 20 and all(0 <= seed < rng.SEED_LIMIT for seed in seeds)
    assert max(seeds) >= 2**60  # all 64 bits are used: missed once in 2^80

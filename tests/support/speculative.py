"""Inputs of speculative sampling for tests: seeds with wanted draws, Markov tables, and the ops with few arguments."""

from __future__ import annotations

import random
from typing import Any

import torch

from tandem.ops._fixed_cdf import weights
from tandem.ops.spec_verify import spec_verify

Tensor = torch.Tensor
WORD = 2**64
BANNED = float("-inf")


def seed_for(uniform: int, position: int, case: int) -> int:
    """The seed whose draw at a position is this 53-bit integer: the hash run backwards (it is a bijection)."""
    z = uniform << 11
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        z ^= (z >> shift) ^ (z >> 2 * shift)
        z = z * pow(factor, -1, WORD) % WORD
    counter = (3 * position + case) * 0x9E3779B97F4A7C15 % WORD
    return (z - 0x9E3779B97F4A7C15 - (counter ^ (counter << 13))) % WORD


def signed(seed: int) -> int:
    return seed - WORD if seed >> 63 else seed


def numbers(rows: int, temperature: float = 1.0) -> dict[str, Tensor]:
    """Arguments that filter nothing."""
    return {
        "temperature": torch.full((rows,), temperature),
        "top_p": torch.ones(rows),
        "top_k": torch.full((rows,), -1, dtype=torch.int32),
        "min_p": torch.zeros(rows),
    }


def verify(logits: Tensor, drafts: Tensor, proposal: Tensor, seed: Tensor, position: Tensor, **more: Any) -> Any:
    """(token, accepted) of rows with a draft each."""
    rows = len(logits)
    arguments = numbers(rows) | {
        "forced": torch.full((rows,), -1, dtype=torch.int32),
        "draft_row": torch.arange(rows, dtype=torch.int32),
        "coupled": False,
        "filtered": False,
    }
    token, accepted, *_ = spec_verify(
        logits, seed=seed, position=position, drafts=drafts, proposal=proposal, **(arguments | more)
    )
    return token, accepted


def table(source: random.Random, vocab: int) -> Tensor:
    """A Markov table of logits f32 [vocab, vocab]; some tokens cannot follow some others."""
    rows = [[source.uniform(-3, 3) if source.random() < 0.8 else BANNED for _ in range(vocab)] for _ in range(vocab)]
    for i, row in enumerate(rows):
        row[(i + 1) % vocab] = max(row[(i + 1) % vocab], -1.0)
    return torch.tensor(rows)


def integer_weights(logits: Tensor) -> Tensor:
    return weights(logits - logits.amax(-1, keepdim=True))

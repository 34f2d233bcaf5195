"""A copy of the output head in fp8, half of its bytes, by which the likeliest token is found.

What it may be wrong by is bounded row by row, as the comment in csrc/cpu/ops/head_greedy.cpp wants it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from tandem.backends.cpu import native
from tandem.backends.cpu.memory import Arena
from tandem.contract.types import CanonicalWeight

Tensor = torch.Tensor
BLOCK = 32  # rows and columns that share a scale
PAD = 64  # csrc/cpu/distribution.h reads whole blocks of tokens
MOST_DEPTH = 1 << 20  # csrc/cpu/ops/head_greedy.cpp


class Screen(NamedTuple):
    """The copy: fp8_block32 codes uint8 [V, K] and scales, and f32 [V in whole 64s], what each row may be wrong by."""

    codes: Tensor
    scale: Tensor
    bound: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(part.numel() * part.element_size() for part in self)


class Head(NamedTuple):
    """A bf16 output head: its stored bits, and the screen."""

    stored: CanonicalWeight
    screen: Screen


def make(arena: Arena, head: Tensor) -> Screen:
    """The screen of a bf16 head [V, K]."""
    vocab, depth = head.shape
    codes = arena.empty((vocab, depth), torch.uint8)
    scale = arena.empty((-(-vocab // BLOCK), -(-depth // BLOCK)), torch.uint8)
    bound = arena.empty((-(-vocab // PAD) * PAD,), torch.float32)
    native.run("head_screen", head, codes, scale, bound, vocab, depth)
    return Screen(codes, scale, bound)

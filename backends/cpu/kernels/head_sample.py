"""`head_sample`: see csrc/cpu/ops/head_greedy.cpp; rows that are many or not all greedy are multiplied and drawn."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary, weights
from tandem.backends.cpu.kernels import _products
from tandem.backends.cpu.kernels._shapes import require
from tandem.backends.cpu.kernels.linear import linear
from tandem.backends.cpu.kernels.sample import sample
from tandem.backends.cpu.screens import Screen
from tandem.contract.types import PackedWeight

Tensor = torch.Tensor
MOST_ROWS = 16  # csrc/cpu/ops/head_greedy.cpp, where it says why


def head_sample(
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
    """See core/ops/head_sample.py."""
    numbers = temperature, top_p, top_k, seed, position, min_p
    require("head_sample", *((array, (x.shape[0],)) for array in numbers))
    screen = weights.screen(head)
    if greedy and screen is not None and x.shape[0] <= MOST_ROWS:
        return _likeliest(x, head, screen)
    logits = linear(x, head, torch.float32)
    return sample(logits, temperature, top_p, top_k, seed, position, filtered, min_p)[0]


def _likeliest(x: Tensor, head: PackedWeight, screen: Screen) -> Tensor:
    held, (vocab, depth) = weights.stored("head_sample", head), head.shape
    data, _, _ = _products.operand("head_sample", x, depth)
    rows = x.shape[0]
    token = temporary.empty((rows,), dtype=torch.int32)
    logits, ids = (temporary.empty((rows, vocab), dtype=dtype) for dtype in (torch.float32, torch.int32))
    room = _products.room(rows, depth)
    native.run("head_greedy", data, held.data, *screen, token, logits, ids, room, rows, depth, vocab)
    return token


OPS: dict[str, Any] = {"head_sample": head_sample}

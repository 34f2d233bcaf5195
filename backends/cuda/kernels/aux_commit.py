"""`aux.commit`: a program takes a run of tokens."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
ROWS = 128


@triton.jit
def _commit(tokens, slots, positions, last_token, length, rows, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    slot = tl.load(slots + row, mask=inside, other=-1)
    tl.store(last_token + slot, tl.load(tokens + row, mask=inside), mask=slot >= 0)
    tl.store(length + slot, tl.load(positions + row, mask=inside) + 1, mask=slot >= 0)


def commit(tokens: Tensor, slots: Tensor, positions: Tensor, last_token: Tensor, length: Tensor) -> None:
    """See core/ops/aux_commit.py."""
    rows = tokens.shape[0]
    launch(_commit, (triton.cdiv(rows, ROWS),), tokens, slots, positions, last_token, length, rows, ROWS=ROWS)


def _traffic(tokens: Tensor, **others: Any) -> tuple[int, int]:
    """Three numbers of each row, two of them kept."""
    return tokens.shape[0] * 12, tokens.shape[0] * 8


OPS: dict[str, Any] = {"aux.commit": commit}
TRAFFIC: dict[str, Any] = {"aux.commit": _traffic}

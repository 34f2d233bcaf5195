"""`aux.commit`: see csrc/cpu/ops/aux_commit.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native
from tandem.backends.cpu.kernels._shapes import require

Tensor = torch.Tensor


def commit(tokens: Tensor, slots: Tensor, positions: Tensor, last_token: Tensor, length: Tensor) -> None:
    """See core/ops/aux_commit.py."""
    rows, entries = tokens.shape[0], length.shape[0]
    require("aux.commit", (slots, (rows,)), (positions, (rows,)), (last_token, (entries,)))
    native.run("aux_commit", tokens, slots, positions, last_token, length, rows, entries)


OPS: dict[str, Any] = {"aux.commit": commit}

"""`sample`: see csrc/cpu/ops/sample.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require, rows_of

Tensor = torch.Tensor


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    seed: Tensor,
    position: Tensor,
    filtered: bool,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See core/ops/sample.py."""
    rows, vocab = logits.shape
    one = (rows,)
    require("sample", *((array, one) for array in (temperature, top_p, top_k, seed, position, min_p)))
    line, stride = rows_of(logits)
    token = temporary.empty(one, dtype=torch.int32)
    raw, logprob = temporary.empty(one, dtype=torch.float32), temporary.empty(one, dtype=torch.float32)
    arrays = (line, temperature, top_p, top_k, seed, position, min_p, token, raw, logprob)
    native.run("sample", *arrays, rows, vocab, stride, int(filtered))
    return token, raw, logprob


OPS: dict[str, Any] = {"sample": sample}

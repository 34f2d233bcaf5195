"""`top_logprobs`: see csrc/cpu/ops/top_logprobs.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import rows_of

Tensor = torch.Tensor
PARTS, LEAST_PART = 16, 1024  # csrc/cpu/distribution.h


def top_logprobs(values: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """See core/ops/top_logprobs.py."""
    rows, vocab = values.shape
    line, stride = rows_of(values)
    ids, logprobs = temporary.empty((rows, n), dtype=torch.int32), temporary.empty((rows, n), dtype=torch.float32)
    part = max(LEAST_PART, -(-vocab // PARTS) + 63)  # at least the length of a part
    heaps = temporary.empty((rows, PARTS, min(n, part)), dtype=torch.int64)
    native.run("top_logprobs", line, ids, logprobs, heaps, rows, vocab, n, stride)
    return ids, logprobs


OPS: dict[str, Any] = {"top_logprobs": top_logprobs}

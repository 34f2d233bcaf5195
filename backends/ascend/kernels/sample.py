"""`sample`: see csrc/ascend/sample.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _distribution
from tandem.backends.ascend.kernels._distribution import FOUND, WIDE, chunk_of, measure, row_plan
from tandem.backends.ascend.plan import Device, Plan

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
    found = measure(logits, temperature, top_p, top_k, min_p, filtered, True)
    token = torch.empty(found.rows, dtype=torch.int32, device=logits.device)
    raw, logprob = torch.empty_like(temperature), torch.empty_like(temperature)
    native.run("sample", found.line, seed, position, *found.found, token, raw, logprob, *found.sizes)
    return token, raw, logprob


def _plan(device: Device, logits: Tensor, filtered: bool, **others: Any) -> list[Plan]:
    """Beside the measurement, one chunk a row."""
    rows, vocab = logits.shape
    launches = _distribution.plans(device, logits, filtered, True)
    chunk = min(chunk_of(vocab), vocab)
    return [*launches, row_plan(device, logits, rows * (chunk * 4 + 64), rows * 12, 3 * WIDE + FOUND)] if rows else []


OPS: dict[str, Any] = {"sample": sample}
PLAN: dict[str, Any] = {"sample": _plan}
WHY: dict[str, str] = {"sample": "weights need the maximum before them, and filters up to five passes"}

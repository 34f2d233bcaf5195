"""`draft_sample`: see csrc/ascend/draft_sample.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _distribution
from tandem.backends.ascend.kernels._distribution import FOUND, WIDE, chunk_of, chunk_plan, measure, row_plan
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def draft_sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
    coupled: bool,
    filtered: bool,
) -> tuple[Tensor, Tensor]:
    """See core/ops/draft_sample.py."""
    found = measure(logits, temperature, top_p, top_k, min_p, filtered, False)
    token = torch.empty(found.rows, dtype=torch.int32, device=logits.device)
    weight = torch.empty((found.rows, found.vocab), dtype=torch.int32, device=logits.device)
    masses = torch.empty_like(found.kept)
    native.run(
        "draft_sample", found.line, seed, position, *found.found, masses, token, weight, *found.sizes, int(coupled)
    )
    return token, weight


def _plan(device: Device, logits: Tensor, filtered: bool, **others: Any) -> list[Plan]:
    """Beside the measurement, the logits once and of the weights one chunk a row."""
    rows, vocab = logits.shape
    if not rows:
        return []
    bytes_of_rows = rows * vocab * 4
    last = rows * (min(chunk_of(vocab), vocab) * 4 + 64)
    launches = _distribution.plans(device, logits, filtered, False)
    launches.append(chunk_plan(device, logits, bytes_of_rows, bytes_of_rows, 2 * WIDE))
    return [*launches, row_plan(device, logits, last, rows * 4, 4 * WIDE + FOUND)]


OPS: dict[str, Any] = {"draft_sample": draft_sample}
PLAN: dict[str, Any] = {"draft_sample": _plan}
WHY: dict[str, str] = {"draft_sample": "weights need the maximum and masses the sum of weights before them"}

"""`process_logits`: see csrc/ascend/process_logits.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _distribution
from tandem.backends.ascend.kernels._distribution import chunk_plan, measure
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def process_logits(
    logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, filtered: bool, min_p: Tensor | None = None
) -> Tensor:
    """See core/ops/process_logits.py."""
    found = measure(logits, temperature, top_p, top_k, min_p, filtered, False)
    out = torch.empty((found.rows, found.vocab), dtype=torch.float32, device=logits.device)
    native.run("process_logits", found.line, found.places, found.numbers, out, *found.sizes)
    return out


def _plan(device: Device, logits: Tensor, filtered: bool, **others: Any) -> list[Plan]:
    """Beside the measurement, the logits once."""
    if not logits.shape[0]:
        return []
    bytes_of_rows = logits.numel() * 4
    last = chunk_plan(device, logits, bytes_of_rows, bytes_of_rows)
    return [*_distribution.plans(device, logits, filtered, False), last]


OPS: dict[str, Any] = {"process_logits": process_logits}
PLAN: dict[str, Any] = {"process_logits": _plan}
WHY: dict[str, str] = {
    "process_logits": "results need the sum of a row, weights its maximum, and filters up to five passes"
}

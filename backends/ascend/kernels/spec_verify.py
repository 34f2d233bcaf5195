"""`spec_verify`: see csrc/ascend/spec_verify.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _distribution
from tandem.backends.ascend.kernels._distribution import FOUND, WIDE, chunk_of, chunk_plan, measure, row_plan
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def spec_verify(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
    forced: Tensor,
    drafts: Tensor,
    proposal: Tensor,
    draft_row: Tensor,
    coupled: bool,
    filtered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See core/ops/spec_verify.py."""
    found = measure(logits, temperature, top_p, top_k, min_p, filtered, True)
    judging = 0 if coupled else found.rows
    splits = found.kept.shape[1]
    scratch = [found.kept.new_empty(shape) for shape in ((2, judging, splits), (3, judging, splits), (judging, 2))]
    outputs = (torch.empty_like(forced), torch.empty_like(forced))
    values = (torch.empty_like(temperature), torch.empty_like(temperature))
    named = (seed, position, forced, drafts, proposal, draft_row)
    native.run("spec_verify", found.line, *named, *found.found, *scratch, *outputs, *values, *found.sizes, int(coupled))
    return *outputs, *values


def _plan(device: Device, logits: Tensor, coupled: bool, filtered: bool, **others: Any) -> list[Plan]:
    """Beside the measurement, proposals twice and logits once where drafts are rejected; at last a chunk a row."""
    rows, vocab = logits.shape
    if not rows:
        return []
    parts, bytes_of_rows = rows * -(-vocab // chunk_of(vocab)), rows * vocab * 4
    launches = _distribution.plans(device, logits, filtered, True)
    if not coupled:
        launches.append(chunk_plan(device, logits, bytes_of_rows, parts * 16, 2 * WIDE))
        launches.append(chunk_plan(device, logits, 2 * bytes_of_rows + parts * 64, parts * 40, 6 * WIDE))
    chunk = min(chunk_of(vocab), vocab) * 4
    last = rows * (chunk * (1 if coupled else 2) + 128)
    return [*launches, row_plan(device, logits, last, rows * 16, (4 if coupled else 9) * WIDE + FOUND)]


OPS: dict[str, Any] = {"spec_verify": spec_verify}
PLAN: dict[str, Any] = {"spec_verify": _plan}
WHY: dict[str, str] = {"spec_verify": "weights need the maximum and masses the sum of weights before them"}

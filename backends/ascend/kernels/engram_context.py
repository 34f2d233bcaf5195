"""`engram_context`: look-back tokens of all rows, then the history of the last rows of each request.

Two launches: a row late in a chunk may write the place from which an early one reads what was before the step.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import Rows

Tensor = torch.Tensor


def engram_context(rows: Rows, vocabulary: Tensor, history: Tensor, pad: int, n: int) -> Tensor:
    """See core/ops/engram_context.py."""
    count, (slots, ring) = rows.ids.shape[0], history.shape
    context = torch.empty((count, n), dtype=torch.int32, device=rows.ids.device)
    step = (rows.ids, rows.positions, rows.slot, rows.chunk_start, rows.chunk_end, rows.roles)
    native.run("engram_context", *step, vocabulary, history, context, count, slots, ring, pad, n)
    return context


def _plan(device: Device, rows: Rows, n: int, **others: Any) -> list[Plan]:
    """Both launches read the rows and gather from the map; the history of every row is counted as read and written."""
    count = rows.ids.shape[0]
    return _grid.plan(device, count, 4 * count * (5 + 1 + n - 1), 4 * count * n) + _grid.plan(
        device, count, 4 * count * (5 + 1), 4 * count
    )


OPS: dict[str, Any] = {"engram_context": engram_context}
PLAN: dict[str, Any] = {"engram_context": _plan}
WHY: dict[str, str] = {
    "engram_context": "reads of the history come before all writes, in a launch of their own, which reads the rows too"
}

"""`topk_index`: see csrc/cpu/ops/topk_index.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary

Tensor = torch.Tensor
PART = 8192  # scores, least that a part has; and several times what it chooses


def topk_index(scores: Tensor, k: int) -> Tensor:
    """See core/ops/topk_index.py."""
    rows, width = scores.shape
    threads = torch.get_num_threads()
    parts = max(1, min(-(-threads // max(rows, 1)), width // max(PART, 8 * k)))
    places = max(1, min(rows * parts, threads))
    room = (2 * k + 2048) // 16 * 16
    index = temporary.empty((rows, k), dtype=torch.int32)
    lists = temporary.empty((rows, parts, 2, k), dtype=torch.int32) if parts > 1 else None
    buffer = temporary.empty((places, 2, room), dtype=torch.int32)
    narrow, wide = (None, scores) if scores.dtype is torch.float32 else (scores, None)
    native.run("topk_index", narrow, wide, index, lists, buffer, rows, width, k, parts, places, room)
    return index


OPS: dict[str, Any] = {"topk_index": topk_index}

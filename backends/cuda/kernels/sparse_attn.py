"""`sparse_attn`: see _attention_kernels.py."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cuda.kernels._attention_kernels import attend
from tandem.contract.types import KVCache

Tensor = torch.Tensor


def sparse_attn(
    q: Tensor,
    window: KVCache,
    window_slots: Tensor,
    main: KVCache | None,
    main_slots: Tensor | None,
    sink: Tensor,
    scale: float,
    hint: str,
) -> Tensor:
    """See core/ops/sparse_attn.py.  The number of rows says better than `hint` which kernels fit."""
    output = torch.empty_like(q)
    caches = ((window, window_slots),)
    if main is not None and main_slots is not None:
        caches += ((main, main_slots),)
    attend("sparse_attn", q, None, caches, sink, scale, output)
    return output


OPS: dict[str, Any] = {"sparse_attn": sparse_attn}

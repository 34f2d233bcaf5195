"""`sparse_attn`: see csrc/ascend/sparse_attn.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _attention
from tandem.backends.ascend.plan import Device, Plan
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
    """See core/ops/sparse_attn.py."""
    caches, sizes = _attention.lists("sparse_attn", window, window_slots, main, main_slots)
    out = torch.empty_like(q)
    partial = _attention.partial(q, _attention.layouts(window, window_slots, main, main_slots))
    native.run("sparse_attn", q, *caches, sink, out, partial, *q.shape, *sizes, scale)
    return out


def _plan(
    device: Device,
    q: Tensor,
    window: KVCache,
    window_slots: Tensor,
    main: KVCache | None,
    main_slots: Tensor | None,
    **others: Any,
) -> list[Plan]:
    """Every slot is counted as held."""
    layouts = _attention.layouts(window, window_slots, main, main_slots)
    return _attention.plan(device, q.shape[0], q.shape[1], layouts)


OPS: dict[str, Any] = {"sparse_attn": sparse_attn}
PLAN: dict[str, Any] = {"sparse_attn": _plan}
WHY: dict[str, str] = {"sparse_attn": _attention.WHY}

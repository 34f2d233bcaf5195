"""`attn_block`: see csrc/ascend/attn_block.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import activations, native
from tandem.backends.ascend.kernels import _attention
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import KVCache, QFormat, QTensor
from tandem.errors import LayoutError

Tensor = torch.Tensor


def attn_block(
    q: Tensor,
    cos_sin: Tensor,
    window: KVCache,
    window_slots: Tensor,
    main: KVCache | None,
    main_slots: Tensor | None,
    sink: Tensor,
    scale: float,
    hint: str,
) -> QTensor:
    """See core/ops/attn_block.py."""
    rows, heads, dim = q.shape
    if dim % QFormat.MXFP8.group:
        raise LayoutError(
            "'attn_block' cannot quantise heads of this width",
            where=f"op 'attn_block', q {tuple(q.shape)}",
            why="a group of 32 elements that share a scale would belong to two heads",
            fix="use a head dim that is a multiple of 32",
        )
    caches, sizes = _attention.lists("attn_block", window, window_slots, main, main_slots)
    out = activations.quantised(rows, heads * dim, QFormat.MXFP8, q.device)
    shape = (rows, heads, dim, cos_sin.shape[1], *sizes)
    partial = _attention.partial(q, _attention.layouts(window, window_slots, main, main_slots))
    native.run("attn_block", q, cos_sin, *caches, sink, out.data, out.scale, partial, *shape, scale)
    return out


def _plan(
    device: Device,
    q: Tensor,
    cos_sin: Tensor,
    window: KVCache,
    window_slots: Tensor,
    main: KVCache | None,
    main_slots: Tensor | None,
    **others: Any,
) -> list[Plan]:
    """Every slot is counted as held."""
    layouts = _attention.layouts(window, window_slots, main, main_slots)
    return _attention.plan(device, q.shape[0], q.shape[1], layouts, cos_sin.shape[1])


OPS: dict[str, Any] = {"attn_block": attn_block}
PLAN: dict[str, Any] = {"attn_block": _plan}
WHY: dict[str, str] = {"attn_block": _attention.WHY}

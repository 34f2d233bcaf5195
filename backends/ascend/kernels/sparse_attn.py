"""`sparse_attn`: see csrc/ascend/sparse_attn.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _attention, _entries, _rows
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
    _entries.require("sparse_attn", window)
    out = torch.empty_like(q)
    (rows, heads, dim), count, own = q.shape, window_slots.shape[1], _rows.FORMATS[window.layout.fmt]
    if main is None or main_slots is None:
        more: tuple[Any, ...] = (None, None)
        sizes = count, 0, own, own
    else:
        _entries.require("sparse_attn", main)
        more = main.data, main_slots
        sizes = count, main_slots.shape[1], own, _rows.FORMATS[main.layout.fmt]
    native.run("sparse_attn", q, window.data, window_slots, *more, sink, out, rows, heads, dim, *sizes, scale)
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
    lists = [(window.layout, window_slots.shape[1])]
    if main is not None and main_slots is not None:
        lists.append((main.layout, main_slots.shape[1]))
    return _attention.plan(device, q.shape[0], q.shape[1], lists)


OPS: dict[str, Any] = {"sparse_attn": sparse_attn}
PLAN: dict[str, Any] = {"sparse_attn": _plan}
WHY: dict[str, str] = {
    "sparse_attn": "what several rows of a step select is read once for each of them; the least counts it once",
}

"""`moe_dispatch`: bring each row to its experts.

Args: xq mxfp8 [T,H], experts[T,k] i32, weights[T,k] f32, row_slot[T] i32, local (pair: first, end) -> MoEBatch:
rows sorted by (expert, token, k)

Reads xq mxfp8 [T, H], experts int32 [T, k], weights f32 [T, k], row_slot int32 [T] and the half-open range of
local experts.  Returns a `MoEBatch` of T*k rows sorted by (local expert, token, k); rows of other ranks'
experts and padding rows come last, past ends[-1].  Class X.  On one rank it is a permutation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import MoEBatch, QFormat, QTensor

Tensor = torch.Tensor


@op("moe_dispatch", classes={"batch": "X"}, attrs=("k", "experts"))
def moe_dispatch(
    xq: QTensor, experts: Tensor, weights: Tensor, row_slot: Tensor, local: tuple[int, int]
) -> MoEBatch:
    """Plain-torch reference; see the module docstring."""
    k, count = experts.shape[1], local[1] - local[0]
    owner = experts.to(torch.int64) - local[0]
    mine = (owner >= 0) & (owner < count) & (row_slot >= 0).unsqueeze(-1)
    key = torch.where(mine, owner, torch.full_like(owner, count)).flatten()
    ordered, order = torch.sort(key, stable=True)
    bins = torch.arange(count, device=key.device)
    ends = torch.searchsorted(ordered, bins, right=True).to(torch.int32)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.shape[0], device=key.device)
    source = torch.where(mine, place.view(-1, k), torch.full_like(owner, -1)).to(torch.int32)
    token = torch.div(order, k, rounding_mode="floor")
    return MoEBatch(xq.take_rows(token), weights.flatten().index_select(0, order), ends, source)


@case("moe_dispatch", "all-experts-here", ROWS)
def _all(seed: int, rows: int) -> dict[str, Any]:
    return _arguments(seed, rows, 6)


@case("moe_dispatch", "a-range-of-experts-and-padding")
def _some(seed: int) -> dict[str, Any]:
    arguments = _arguments(seed, 17, 8)
    arguments["row_slot"][3::5] = -1
    return arguments | {"local": (2, 6)}


@case("moe_dispatch", "nothing-here")
def _none(seed: int) -> dict[str, Any]:
    return _arguments(seed, 3, 4) | {"local": (10, 12)}


@case("moe_dispatch", "many-pairs")
def _many(seed: int) -> dict[str, Any]:
    """More pairs than one block of a sort takes."""
    arguments = _arguments(seed, 301, 9)
    arguments["row_slot"][7::11] = -1
    return arguments | {"local": (1, 8)}


@case("moe_dispatch", "wide-rows")
def _wide(seed: int) -> dict[str, Any]:
    """Rows wider than one block of a copy, their scales no whole number of tiles."""
    return _arguments(seed, 3, 4) | {"xq": Draw(seed).quantised(QFormat.MXFP8, 3, 2112)}


def _arguments(seed: int, rows: int, experts: int) -> dict[str, Any]:
    draw = Draw(seed)
    chosen = draw.rng.permuted(np.tile(np.arange(experts, dtype=np.int32), (rows, 1)), axis=1)[:, :2]
    return {
        "xq": draw.quantised(QFormat.MXFP8, rows, 64),
        "experts": torch.from_numpy(chosen.copy()),
        "weights": draw.f32(rows, 2),
        "row_slot": draw.i32(0, 4, rows),
        "local": (0, experts),
    }

"""`aux.verify_rows`: share the rows of a step among the drafts that are likeliest to be taken.

Args: slots[n] i32, rates[R+1,B] f32, drafts[R+1,B] i32, length[R+1] i32, limit[R+1] i32, most[n] i32, rows -> slot[T]
i32, offset[T] i32, chunk_start[T] i32, chunk_end[T] i32, counts[n] i32

Reads slots int32 [n] (-1: none), rates f32 [R + 1, B] the rate at which each draft is reached and taken, drafts int32
[R + 1, B] (-1: none), length int32 [R + 1] the position of each request's last token, limit int32 [R + 1], most int32
[n] the most drafts that each request may have judged; rows = T, at least n.  Every slot gets one row; the other
rows go to drafts.  Draft j of request s is a candidate if j < most, all before it are candidates, drafts[s, j] >= 0 and
length[s] + 1 + j < limit[s] - 1.  A rate counts as at most that of the draft before, NaN as 0; rows go by (rate
descending, place in slots, j ascending), so each request gets the first of its drafts.  Returns counts int32 [n],
1 + drafts (0 for slot -1), and the rows, of one request together, in the order of slots: slot, offset (0 for the
last token, j for its j-th draft, counted from 1), chunk_start and chunk_end, first row and one past the last of
the request.  Rows that are left over are padding: slot -1, offset 0, chunk of their own.  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op(
    "aux.verify_rows",
    classes=dict.fromkeys(("slot", "offset", "chunk_start", "chunk_end", "counts"), "X"),
    since=(1, 1),
)
def verify_rows(
    slots: Tensor, rates: Tensor, drafts: Tensor, length: Tensor, limit: Tensor, most: Tensor, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Plain-torch reference; see the module docstring."""
    real, at = slots >= 0, slots.to(torch.int64)
    chosen = _chosen(rates[at], _candidates(drafts[at], length[at], limit[at], most) & real.unsqueeze(-1), real, rows)
    counts = torch.where(real, 1 + chosen, 0)
    ends = counts.cumsum(0)
    row = torch.arange(rows, device=slots.device)
    owner = (ends <= row.unsqueeze(-1)).sum(-1)
    used, owner = owner < slots.shape[0], owner.clamp_max(slots.shape[0] - 1)
    start = torch.where(used, (ends - counts)[owner], row)
    found = (
        torch.where(used, slots[owner], -1),
        row - start,
        start,
        torch.where(used, ends[owner], row + 1),
        counts,
    )
    slot, offset, chunk_start, chunk_end, kept = (array.to(torch.int32) for array in found)
    return slot, offset, chunk_start, chunk_end, kept


def _candidates(drafts: Tensor, length: Tensor, limit: Tensor, most: Tensor) -> Tensor:
    """Drafts int32 [n, B] that may be judged, bool."""
    place = torch.arange(drafts.shape[1], device=drafts.device)
    fits = (length.unsqueeze(-1) + 1 + place < limit.unsqueeze(-1) - 1) & (place < most.unsqueeze(-1))
    return ((drafts >= 0) & fits).to(torch.int32).cumprod(-1) == 1


def _chosen(rates: Tensor, candidates: Tensor, real: Tensor, rows: int) -> Tensor:
    """How many drafts of each request get a row, int64 [n]."""
    rate = torch.where(torch.isnan(rates), 0.0, rates).cummin(-1).values
    rate = torch.where(candidates, rate, float("-inf")).flatten()
    order = torch.sort(rate, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))
    free = rows - real.sum()
    return ((rank < free).view(candidates.shape) & candidates).sum(-1)


def _arguments(seed: int, rows: int) -> dict[str, Any]:
    """Six requests with seven drafts to judge: one without a slot, two near their limits, one without drafts."""
    draw = Draw(seed)
    confidence = torch.from_numpy(draw.rng.random((7, 4), dtype="float32")) * 0.5 + 0.5
    drafts = draw.i32(0, 99, 7, 4)
    drafts[4, 2], drafts[2, 0] = -1, -1
    return {
        "slots": torch.tensor([4, 1, -1, 0, 2, 5], dtype=torch.int32),
        "rates": confidence.cumprod(-1),
        "drafts": drafts,
        "length": torch.tensor([10, 20, 5, 3, 8, 60, 0], dtype=torch.int32),
        "limit": torch.tensor([99, 22, 99, 99, 99, 64, 0], dtype=torch.int32),  # room for no draft in slot 1, two in 5
        "most": torch.tensor([4, 4, 4, 3, 4, 4], dtype=torch.int32),
        "rows": rows,
    }


@case("aux.verify_rows", "few-rows")
def _few(seed: int) -> dict[str, Any]:
    """Four rows for seven candidates."""
    return _arguments(seed, 9)


@case("aux.verify_rows", "rows-left-over")
def _many(seed: int) -> dict[str, Any]:
    """Every candidate gets a row, and padding follows."""
    return _arguments(seed, 21)


@case("aux.verify_rows", "no-row-to-share")
def _none(seed: int) -> dict[str, Any]:
    """As many rows as slots: the place of the slot that is none goes to a draft."""
    return _arguments(seed, 6)


@case("aux.verify_rows", "ties-and-nan")
def _ties(seed: int) -> dict[str, Any]:
    """Equal rates go by place; NaN counts as 0 and ends what is worth judging; a rate that rises counts as before."""
    arguments = _arguments(seed, 10)
    rates = torch.full((7, 4), 0.5)
    rates[0, 1], rates[5, 0], rates[5, 1] = float("nan"), 0.25, 0.9
    return arguments | {"rates": rates}


@case("aux.verify_rows", "many-requests")
def _crowd(seed: int) -> dict[str, Any]:
    """More drafts than one tile of a comparison holds, half of them at the same rate."""
    draw = Draw(seed)
    count = 61
    slots = torch.from_numpy(draw.rng.permutation(count).astype("int32"))
    slots[5::9] = -1
    rates = torch.from_numpy(draw.rng.random((count + 1, 5), dtype="float32")).cumprod(-1)
    rates[::2] = 0.25
    return {
        "slots": slots,
        "rates": rates,
        "drafts": draw.i32(-1, 9, count + 1, 5),
        "length": draw.i32(0, 20, count + 1),
        "limit": draw.i32(15, 40, count + 1),
        "most": draw.i32(0, 6, count),
        "rows": 150,
    }

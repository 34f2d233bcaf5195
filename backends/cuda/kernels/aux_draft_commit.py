"""`aux.draft_commit`: a program copies one part of the weights that one request's draft was drawn by."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
COLUMNS = 4096  # 16 bytes a thread, several of them in flight


@triton.jit
def _draft_commit(
    slots,
    column,
    token,
    weight,
    confidence,
    drafts,
    proposal,
    rates,
    width,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The first program of a request also keeps its token and rate; a request without a slot leaves nothing."""
    request = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    slot = tl.load(slots + request).to(tl.int64)
    if slot >= 0:
        place = slot * BLOCK + column
        at = part * COLUMNS + tl.arange(0, COLUMNS)
        inside = at < width
        tl.store(proposal + place * width + at, tl.load(weight + request * width + at, mask=inside), mask=inside)
        if part == 0:
            tl.store(drafts + place, tl.load(token + request))
            rate = tl.load(confidence + request)
            if column > 0:
                rate = rate * tl.load(rates + place - 1)
            tl.store(rates + place, rate)


def draft_commit(
    slots: Tensor,
    column: int,
    token: Tensor,
    weight: Tensor,
    confidence: Tensor,
    drafts: Tensor,
    proposal: Tensor,
    rates: Tensor,
) -> None:
    """See core/ops/aux_draft_commit.py."""
    requests, width = weight.shape
    launch(
        _draft_commit,
        (requests, triton.cdiv(width, COLUMNS)),
        slots,
        column,
        token,
        weight,
        confidence,
        drafts,
        proposal,
        rates,
        width,
        BLOCK=drafts.shape[1],
        COLUMNS=COLUMNS,
        num_warps=8,
    )


def _traffic(weight: Tensor, **others: Any) -> tuple[int, int]:
    """The weights, and a slot, a token and one or two rates of each request."""
    requests, width = weight.shape
    return requests * (width * 4 + 16), requests * (width * 4 + 8)


OPS: dict[str, Any] = {"aux.draft_commit": draft_commit}
TRAFFIC: dict[str, Any] = {"aux.draft_commit": _traffic}

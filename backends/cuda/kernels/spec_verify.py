"""`spec_verify`: masses of target and proposal are summed by chunk, then one program a row judges and draws.

What is missing of a row's masses to 2^42 is known only after they are summed, so the sums are made without it and
corrected at the two tokens it belongs to.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.accelerator.strided import with_stride
from tandem.backends.cuda.kernels._distribution import (
    BLOCK,
    WARPS,
    Measured,
    Numbers,
    at_chunk,
    chunk_sums,
    kept_weights,
    log_of_all,
    log_of_kept,
    measure,
    measured_bytes,
    row_numbers,
)
from tandem.backends.cuda.kernels._filters import graded, row_peak
from tandem.backends.cuda.kernels._sampling import (
    HEAVIEST,
    NOWHERE,
    WHOLE,
    chunk_of,
    image,
    mass,
    reciprocal,
    scaled_logit,
    scaled_uniform,
    uniform,
)
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor


@triton.jit
def _judged(draft_row, drafts, forced, row):
    """(row of the proposal, draft, whether it is to be judged by rejection, forced token) of a row."""
    judged = tl.load(draft_row + row)
    draft = tl.load(drafts + judged, mask=judged >= 0, other=-1)
    must = tl.load(forced + row)
    return judged.to(tl.int64), draft, (draft >= 0) & (must < 0), must


@triton.jit
def _offers(
    proposal, vocab, draft_row, drafts, forced, offers, splits, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Of one chunk of the proposal that one row judges: sum of weights, the largest, the lowest id of it."""
    row, chunk = (tl.program_id(0) // splits).to(tl.int64), tl.program_id(0) % splits
    judged, _draft, rejecting, _must = _judged(draft_row, drafts, forced, row)
    if rejecting:
        total = tl.zeros((BLOCK,), tl.int64)
        high, at = tl.full((BLOCK,), -1, tl.int32), tl.full((BLOCK,), NOWHERE, tl.int32)
        for start in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), BLOCK):
            token = chunk * CHUNK + start + tl.arange(0, BLOCK)
            weight = tl.load(proposal + judged * vocab + token, mask=token < vocab, other=-1)
            at = tl.where(weight > high, token, at)
            high = tl.maximum(high, weight)
            total += tl.maximum(weight, 0)
        largest = tl.max(high)
        place = offers + (row * splits + chunk) * 3
        tl.store(place, tl.sum(total))
        tl.store(place + 1, largest.to(tl.int64))
        tl.store(place + 2, tl.min(tl.where(high == largest, at, NOWHERE)).to(tl.int64))


@triton.jit
def _offer_of(offers, row, splits, SPLITS: tl.constexpr):
    """(sum of a proposal's weights, the largest, the lowest id of it), int64."""
    chunk = tl.arange(0, SPLITS)
    place, inside = offers + (row * splits + chunk) * 3, chunk < splits
    total = tl.sum(tl.load(place, mask=inside, other=0))
    high = tl.load(place + 1, mask=inside, other=-1)
    largest = tl.max(high)
    return total, largest, tl.min(tl.load(place + 2, mask=inside & (high == largest), other=NOWHERE))


@triton.jit
def _judge(
    logits, stride, vocab, temperature, min_p, best, top, cut, kept, ties, proposal, draft_row, drafts, forced, offers,
    sums_out, special, splits, CHUNK: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One chunk of one row that rejects: sums of target masses, proposal masses and what the target has more.

    Also the target's masses of the draft and of the proposal's favourite, by the chunks that hold them.
    """
    row, chunk = (tl.program_id(0) // splits).to(tl.int64), tl.program_id(0) % splits
    peak, _first, valid = row_peak(best, top, row, splits, SPLITS)
    judged, draft, rejecting, _must = _judged(draft_row, drafts, forced, row)
    if valid & rejecting:
        inverse, least, bound, keep = row_numbers(temperature, min_p, cut, row)
        sums, tied, _tied = chunk_sums(kept, ties, row, splits, bound, keep, peak, inverse, least, SPLITS)
        total, before = tl.sum(sums), at_chunk(tied, chunk, SPLITS)
        offered, _largest, favourite = _offer_of(offers, row, splits, SPLITS)
        by_total, by_offered = reciprocal(total), reciprocal(offered)
        none = tl.zeros((BLOCK,), tl.int64)
        q_sum, p_sum, left_sum, at_draft, at_favourite = none, none, none, none, none
        for start in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), BLOCK):
            token = chunk * CHUNK + start + tl.arange(0, BLOCK)
            weight, before = kept_weights(
                logits + row * stride, vocab, token, peak, inverse, least, bound, keep, before
            )
            q = mass(weight, total, by_total)
            other = tl.load(proposal + judged * vocab + token, mask=token < vocab, other=0)
            p = mass(other.to(tl.int64), offered, by_offered)
            q_sum += q
            p_sum += p
            left_sum += tl.maximum(q - p, 0)
            at_draft += tl.where(token == draft, q, 0)
            at_favourite += tl.where(token == favourite, q, 0)
        place = sums_out + (row * splits + chunk) * 3
        tl.store(place, tl.sum(q_sum))
        tl.store(place + 1, tl.sum(p_sum))
        tl.store(place + 2, tl.sum(left_sum))
        if draft // CHUNK == chunk:
            tl.store(special + row * 2, tl.sum(at_draft))
        if favourite // CHUNK == chunk:
            tl.store(special + row * 2 + 1, tl.sum(at_favourite))


@triton.jit
def _rejection(
    sums_in, special, heavy, offer_row, row, splits, draft, by_total, total, offered, largest, theirs, by_offered,
    number, CHUNK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Judge the draft of one row with a 53-bit number.

    Returns whether it is taken; else, by chunk, the sums to draw from, and whether they are the target's own; then the
    target's favourite, what its mass gets on top, and the same on top of the proposal's.
    """
    chunk = tl.arange(0, SPLITS)
    place, inside = sums_in + (row * splits + chunk) * 3, chunk < splits
    q, p = tl.load(place, mask=inside, other=0), tl.load(place + 1, mask=inside, other=0)
    left = tl.load(place + 2, mask=inside, other=0)
    mine = tl.min(tl.load(heavy + row * splits + chunk, mask=inside, other=NOWHERE))
    q_more = -tl.sum(q) + WHOLE
    p_more = tl.where(offered > 0, -tl.sum(p) + WHOLE, 0)
    q_mine = mass(tl.full((), HEAVIEST, tl.int64), total, by_total)
    p_mine = mass(tl.load(offer_row + mine).to(tl.int64), offered, by_offered)
    over = q_mine + q_more - p_mine - tl.where(mine == theirs, p_more, 0)
    left += tl.where(chunk == mine // CHUNK, tl.maximum(over, 0) - tl.maximum(q_mine - p_mine, 0), 0)
    lead = tl.load(special + row * 2 + 1) - mass(largest, offered, by_offered)
    change = tl.maximum(lead - p_more, 0) - tl.maximum(lead, 0)
    left += tl.where((chunk == theirs // CHUNK) & (mine != theirs), change, 0)
    q += tl.where(chunk == mine // CHUNK, q_more, 0)
    q_draft = tl.load(special + row * 2) + tl.where(draft == mine, q_more, 0)
    p_draft = mass(tl.load(offer_row + draft).to(tl.int64), offered, by_offered) + tl.where(draft == theirs, p_more, 0)
    empty = tl.sum(left) == 0
    return scaled_uniform(number, p_draft) < q_draft, tl.where(empty, q, left), empty, mine, q_more, p_more


@triton.jit
def _is_kept(
    row_logits, vocab, token, tied, peak, inverse, least, bound, keep,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Whether the filters leave a token; at the bound its place among the tokens there decides."""
    x = tl.load(row_logits + token)
    _power, _weight, alive = graded(x, peak, inverse, least)
    left = alive & (image(x) > bound)
    if alive & (keep > 0) & (image(x) == bound):
        chunk = token // CHUNK
        rank = at_chunk(tied, chunk, SPLITS)
        for start in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), BLOCK):
            other = chunk * CHUNK + start + tl.arange(0, BLOCK)
            key = image(tl.load(row_logits + other, mask=other < token, other=float("inf")))
            rank += tl.sum(((key == bound) & (other < token)).to(tl.int32))
        left = rank < keep
    return left


@triton.jit
def _verify(
    logits, stride, vocab, temperature, min_p, seed, position, best, top, cut, kept, ties, heavy, spread, raw,
    proposal, draft_row, drafts, forced, offers, sums_in, special, token_out, accepted_out, raw_out, logprob_out,
    splits, COUPLED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One row: its token, whether that is the draft, and its log-probabilities."""
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * stride
    peak, _first, valid = row_peak(best, top, row, splits, SPLITS)
    judged, draft, rejecting, chosen = _judged(draft_row, drafts, forced, row)
    raw_value, value = float("nan"), float("nan")
    if valid:
        inverse, least, bound, keep = row_numbers(temperature, min_p, cut, row)
        sums, tied, tied_power = chunk_sums(kept, ties, row, splits, bound, keep, peak, inverse, least, SPLITS)
        left = True
        if chosen >= 0:
            left = _is_kept(row_logits, vocab, chosen, tied, peak, inverse, least, bound, keep, CHUNK, BLOCK, SPLITS)
        else:
            chosen = _drawn(
                row_logits, vocab, seed, position, heavy, proposal + judged * vocab, draft, rejecting, offers,
                sums_in, special, sums, tied, peak, inverse, least, bound, keep, row, splits,
                COUPLED, CHUNK, BLOCK, SPLITS,
            )  # fmt: skip
        x = tl.load(row_logits + chosen)
        raw_value = ((x - peak).to(tl.float64) - log_of_all(raw, row, splits, 0.0, SPLITS)).to(tl.float32)
        log = log_of_kept(spread, row, splits, bound, keep, peak, tied_power, SPLITS)
        value = (scaled_logit(x, peak, inverse).to(tl.float64) - log).to(tl.float32)
        value = tl.where(left, value, float("-inf"))
    else:
        chosen = -1
    tl.store(token_out + row, chosen)
    tl.store(accepted_out + row, ((draft >= 0) & (chosen == draft)).to(tl.int32))
    tl.store(raw_out + row, raw_value)
    tl.store(logprob_out + row, value)


@triton.jit
def _drawn(
    row_logits, vocab, seed, position, heavy, offer_row, draft, rejecting, offers, sums_in, special, sums, tied,
    peak, inverse, least, bound, keep, row, splits,
    COUPLED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The token of a row that is free to draw: the draft where it is taken, else one drawn from what is due."""
    own, at = tl.load(seed + row), tl.load(position + row)
    total, line_sums, number = tl.sum(sums), sums, uniform(own, at, 0)
    taken, empty = False, False
    mine, theirs, q_more, p_more, offered = 0, total * 0, total * 0, total * 0, total * 0
    by_total = reciprocal(total)
    by_offered = by_total
    if not COUPLED:
        if rejecting:
            offered, largest, theirs = _offer_of(offers, row, splits, SPLITS)
            by_offered = reciprocal(offered)
            taken, line_sums, empty, mine, q_more, p_more = _rejection(
                sums_in, special, heavy, offer_row, row, splits, draft, by_total, total, offered, largest, theirs,
                by_offered, uniform(own, at, 2), CHUNK, SPLITS,
            )  # fmt: skip
            number = uniform(own, at, 1)
    token = draft
    if not taken:
        target = scaled_uniform(number, tl.sum(line_sums))
        chunk, line = chunk_of(line_sums, target, SPLITS)
        before = at_chunk(tied, chunk, SPLITS)
        token = chunk * CHUNK
        for start in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), BLOCK):
            other = chunk * CHUNK + start + tl.arange(0, BLOCK)
            share, before = kept_weights(row_logits, vocab, other, peak, inverse, least, bound, keep, before)
            if not COUPLED:
                if rejecting:
                    q = mass(share, total, by_total) + tl.where(other == mine, q_more, 0)
                    weight = tl.load(offer_row + other, mask=other < vocab, other=0)
                    p = mass(weight.to(tl.int64), offered, by_offered) + tl.where(other == theirs, p_more, 0)
                    share = tl.where(empty, q, tl.maximum(q - p, 0))
            token += tl.sum((line + tl.cumsum(share, axis=0) <= target).to(tl.int32))
            line += tl.sum(share)
    return token


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
    rows, vocab = logits.shape
    found = measure(logits, Numbers(temperature, top_p, top_k, min_p), filtered, True)
    named = (proposal, draft_row, drafts, forced)
    offers = torch.empty((rows, found.splits, 3), dtype=torch.int64, device=logits.device)
    sums = torch.empty_like(offers)
    special = torch.empty((rows, 2), dtype=torch.int64, device=logits.device)
    if not coupled:
        _sum_masses(logits, temperature, min_p, found, named, offers, sums, special)
    token, accepted = torch.empty_like(forced), torch.empty_like(forced)
    raw, logprob = torch.empty_like(temperature), torch.empty_like(temperature)
    launch(
        _verify, (rows,), *with_stride(logits), vocab, temperature, min_p, seed, position, found.best, found.top,
        found.cut, found.kept, found.ties, found.heavy, found.spread, found.raw, *named, offers, sums, special,
        token, accepted, raw, logprob, found.splits, COUPLED=coupled, **found.meta(),
    )  # fmt: skip
    return token, accepted, raw, logprob


def _sum_masses(
    logits: Tensor,
    temperature: Tensor,
    min_p: Tensor,
    found: Measured,
    named: tuple[Tensor, ...],
    offers: Tensor,
    sums: Tensor,
    special: Tensor,
) -> None:
    rows, vocab = logits.shape
    proposal, *judging = named
    grid = (rows * found.splits,)
    launch(
        _offers, grid, proposal, vocab, *judging, offers, found.splits, CHUNK=found.chunk, BLOCK=BLOCK, num_warps=WARPS
    )
    launch(
        _judge, grid, *with_stride(logits), vocab, temperature, min_p, found.best, found.top, found.cut, found.kept,
        found.ties, *named, offers, sums, special, found.splits, **found.meta(),
    )  # fmt: skip


def _traffic(logits: Tensor, coupled: bool, filtered: bool, **others: Any) -> tuple[int, int]:
    """Beside `measure`, proposals twice and logits once where drafts are rejected; the last kernel reads a chunk."""
    judged = 0 if coupled else 3 * logits.numel() * 4
    return measured_bytes(logits, filtered) + judged, logits.shape[0] * 16


OPS: dict[str, Any] = {"spec_verify": spec_verify}
TRAFFIC: dict[str, Any] = {"spec_verify": _traffic}
WHY: dict[str, str] = {
    "spec_verify": "weights need the maximum and masses the sum of weights before them; up to 100 rows stay in L2"
}

"""`spec_verify`: judge drafts, and draw one token per row.

Args: logits[N,V] f32, temperature[N] f32, top_p[N] f32, top_k[N] i32, min_p[N] f32, seed[N] i64, position[N] i64,
forced[N] i32 (-1 none), drafts[M] i32 (-1 none), proposal[M,V] i32 (weights each draft was drawn by), draft_row[N]
i32 (-1 none), coupled, filtered (host hint) -> token[N] i32 (-1 none), accepted[N] i32, logprob_raw[N] f32,
logprob[N] f32

Reads
  logits, temperature, top_p, top_k, min_p, seed, position, filtered as in `sample`; V at most 2^23;
  forced int32 [N]: a token that is emitted whatever is drawn, -1 for none;
  drafts int32 [M], proposal int32 [M, V] with weights 0 to 2^30, as `draft_sample` gives them, M at least 1;
  draft_row int32 [N]: the draft that the row judges, -1 for none; a draft of -1 counts as none;
  coupled: how a draft is judged.
Writes nothing.  Returns
  token int32 [N]: forced where given; else where there is no draft, or coupled, what `sample` draws; else by
  rejection: with P and Q of sum 2^42 made from proposal and target (`core/ops/_residual.py: normalised`), the draft
  t where floor(u2 * P[t] / 2^53) < Q[t], else a token drawn with u1 from max(Q - P, 0) as `sample` draws from
  weights; u1 and u2 are the draws of cases 1 and 2.  The law of the token is that of Q, within 2^-40;
  accepted int32 [N]: 1 where there is a draft and the token is it;
  logprob_raw, logprob f32 [N] as in `sample`; a forced token that the filters remove has logprob -inf.
A greedy row has all of Q on its argmax.  A row with any NaN or without a finite maximum gives token -1, accepted 0
and NaN logprobs, forced or not.  A row depends on nothing but itself and the draft it names.
Classes: token P, accepted P, logprob_raw U(4), logprob U(4).  The rule is speculative sampling (Leviathan and
others, ICML 2023; Chen and others, 2023) in integers.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import case, op
from tandem.ops._distribution import distribution, log_normaliser
from tandem.ops._fixed_cdf import draw, uniform53, weights
from tandem.ops._residual import normalised, reject_or_take
from tandem.ops.sample import normal_logits

Tensor = torch.Tensor


@op(
    "spec_verify",
    classes={"token": "P", "accepted": "P", "logprob_raw": "U(4)", "logprob": "U(4)"},
    since=(1, 1),
)
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
    """Plain-torch reference; see the module docstring."""
    dist = distribution(logits, temperature, top_p, top_k, filtered, min_p)
    judged = draft_row.clamp_min(0).to(torch.int64)
    draft = torch.where(draft_row >= 0, drafts[judged], -1).to(torch.int64)
    offered = draft >= 0
    at = position.to(torch.int64)
    token = draw(dist.weight, uniform53(seed, at))
    if not coupled:
        target, offer = normalised(dist.weight), normalised(proposal[judged].to(torch.int64))
        token = torch.where(offered, reject_or_take(target, offer, draft.clamp_min(0), seed, at), token)
    token = torch.where(forced >= 0, forced.to(torch.int64), token)
    accepted = offered & dist.valid & (token == draft)
    place = token.unsqueeze(-1)
    raw = dist.raw.gather(1, place) - log_normaliser(dist.raw, None, dist.top)
    processed = dist.scaled.gather(1, place) - log_normaliser(dist.scaled, dist.kept, dist.top)
    processed = torch.where(dist.kept.gather(1, place), processed, float("-inf"))
    nan = float("nan")
    return (
        torch.where(dist.valid, token, -1).to(torch.int32),
        accepted.to(torch.int32),
        torch.where(dist.valid, raw.squeeze(-1), nan),
        torch.where(dist.valid, processed.squeeze(-1), nan),
    )


def verify_arguments(
    seed: int, rows: int, vocab: int, temperature: float = 1.0, coupled: bool = False
) -> dict[str, Any]:
    """One draft a row, likely under a proposal that is another one than the target, without filters."""
    logits, other = normal_logits(seed, rows, vocab, 1.5), normal_logits(seed + 1, rows, vocab, 1.0)
    mixed = logits + other
    proposal = weights(mixed - mixed.amax(-1, keepdim=True)).to(torch.int32)
    generator = torch.Generator().manual_seed(seed + 2)
    drafts = torch.multinomial(proposal.to(torch.float64), 1, generator=generator).squeeze(-1).to(torch.int32)
    return {
        "logits": logits,
        "temperature": torch.full((rows,), temperature),
        "top_p": torch.ones(rows),
        "top_k": torch.full((rows,), -1, dtype=torch.int32),
        "min_p": torch.zeros(rows),
        "seed": torch.arange(rows, dtype=torch.int64) * 7919 - 5 * seed,
        "position": torch.arange(rows, dtype=torch.int64) * 131 + seed,
        "forced": torch.full((rows,), -1, dtype=torch.int32),
        "drafts": drafts,
        "proposal": proposal,
        "draft_row": torch.arange(rows, dtype=torch.int32),
        "coupled": coupled,
        "filtered": False,
    }


@case("spec_verify", "rejection")
def rejection(seed: int) -> dict[str, Any]:
    """A draft in every row, of a vocabulary that is no multiple of any vector width; some are taken."""
    return verify_arguments(seed, 17, 131)


@case("spec_verify", "coupled")
def coupled_rows(seed: int) -> dict[str, Any]:
    """Rows that draw as `sample` does; the drafts of the first five are what they draw."""
    from tandem.ops.sample import sample  # the rule of another file, read where it is meant

    arguments = verify_arguments(seed, 9, 61, coupled=True)
    names = ("logits", "temperature", "top_p", "top_k", "seed", "position")
    arguments["drafts"][:5] = sample(*(arguments[name] for name in names), False)[0][:5]
    return arguments


def _filtered(seed: int, coupled: bool) -> dict[str, Any]:
    arguments = verify_arguments(seed, 8, 97, coupled=coupled)
    arguments["temperature"] = torch.tensor([0.0, 0.7, 1.0, 1.5, 1.0, 0.0, 1.0, 0.9])
    arguments["top_p"] = torch.tensor([1.0, 0.8, 1.0, 0.6, 0.95, 0.9, 1.0, 0.9])
    arguments["top_k"] = torch.tensor([-1, -1, 5, 20, -1, 3, -1, 7], dtype=torch.int32)
    arguments["min_p"] = torch.tensor([0.1, 0.0, 0.0, 0.02, 0.1, 0.0, 0.0, 0.05])
    arguments["drafts"][0] = arguments["logits"][0].argmax()
    return arguments | {"filtered": True}


@case("spec_verify", "filters")
def filters(seed: int) -> dict[str, Any]:
    """Every row with its own filters; two are greedy, and the first of them is offered its argmax."""
    return _filtered(seed, coupled=False)


@case("spec_verify", "filters_coupled")
def filters_coupled(seed: int) -> dict[str, Any]:
    """The same rows, coupled."""
    return _filtered(seed, coupled=True)


@case("spec_verify", "no_drafts")
def no_drafts(seed: int) -> dict[str, Any]:
    """Rows without a draft among others, by row -1 and by draft -1; rows of the proposal are in another order."""
    arguments = verify_arguments(seed, 7, 64)
    arguments["drafts"][2] = -1
    arguments["draft_row"] = torch.tensor([6, -1, 2, 0, 3, -1, 5], dtype=torch.int32)
    return arguments


@case("spec_verify", "forced")
def forced_rows(seed: int) -> dict[str, Any]:
    """Forced tokens: the draft, another one, without a draft, a banned one, and one that the filters remove."""
    arguments = verify_arguments(seed, 6, 50) | {"filtered": True}
    arguments["top_k"] = torch.tensor([-1, -1, -1, -1, 3, 4], dtype=torch.int32)
    drafts = arguments["drafts"]
    arguments["draft_row"][2] = -1
    banned, last = 11, int(arguments["logits"][4].argmin())
    arguments["logits"][3, banned] = float("-inf")
    forced = [int(drafts[0]), (int(drafts[1]) + 1) % 50, 7, banned, last, -1]
    return arguments | {"forced": torch.tensor(forced, dtype=torch.int32)}


@case("spec_verify", "ties")
def ties(seed: int) -> dict[str, Any]:
    """Few distinct values in target and proposal, so that masses are equal and remainders go to the lowest id."""
    arguments = verify_arguments(seed, 8, 33)
    arguments["logits"] = arguments["logits"].round()
    arguments["proposal"] = (arguments["proposal"] >> 28) << 28
    arguments["drafts"] = arguments["proposal"].argmax(-1).to(torch.int32)
    return arguments


@case("spec_verify", "same_law")
def same_law(seed: int) -> dict[str, Any]:
    """Target and proposal are the same weights: every draft is taken, and nothing is left over."""
    arguments = verify_arguments(seed, 6, 40)
    logits = arguments["logits"]
    return arguments | {"proposal": weights(logits - logits.amax(-1, keepdim=True)).to(torch.int32)}


@case("spec_verify", "unusable_rows")
def unusable_rows(seed: int) -> dict[str, Any]:
    """Rows of -inf, with +inf and with NaN between good ones; one is forced, one proposal has no weight."""
    arguments = verify_arguments(seed, 6, 40)
    arguments["logits"][1] = float("-inf")
    arguments["logits"][2, 7] = float("inf")
    arguments["logits"][3, 39] = float("nan")
    arguments["forced"][3] = 4
    arguments["proposal"][4] = 0
    return arguments


@case("spec_verify", "large_vocabulary")
def large_vocabulary(seed: int) -> dict[str, Any]:
    """More tokens than one tile holds; the draft of the first row has no mass in the target."""
    arguments = verify_arguments(seed, 3, 9001)
    arguments["logits"][0, int(arguments["drafts"][0])] = float("-inf")
    arguments["position"][-1] = 1_000_003
    return arguments

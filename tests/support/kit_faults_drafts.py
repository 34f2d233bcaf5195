"""Faults of speculative sampling and of the ops that carry drafts from step to step."""

from __future__ import annotations

from typing import Any

import torch
from support.kit_faults import Call, fault

Tensor = torch.Tensor


@fault("every draft taken", "spec_verify", "rejection", "values")
def all_taken(call: Call) -> Any:
    return call.run(forced=call["drafts"][call["draft_row"].long()])


@fault("no draft read as the last one", "spec_verify", "no_drafts", "values", may=("rows",))
def last_draft(call: Call) -> Any:
    rows = call["draft_row"]
    return call.run(draft_row=torch.where(rows < 0, len(call["drafts"]) - 1, rows).to(torch.int32))


@fault("the residual is the whole target", "spec_verify", "large_vocabulary", "values")
def whole_target(call: Call) -> Any:
    """What is refused is drawn anew with case 1, as if nothing had been offered."""
    token, accepted, raw, processed = call.run()
    shifted = call.run(position=call["position"] + 1, coupled=True)[0]
    return torch.where(accepted == 1, token, shifted), accepted, raw, processed


@fault("drafts of the request's own stream", "draft_sample", "plain", "values")
def own_stream(call: Call) -> Any:
    return call.run(coupled=True)


@fault("weights before the filters", "draft_sample", "filters", "values")
def unfiltered(call: Call) -> Any:
    token, _ = call.run()
    return token, call.run(filtered=False)[1]


@fault("min-p after top-p", "process_logits", "min_p", "values")
def late_min_p(call: Call) -> Tensor:
    """Top-p of everything, and what min-p would remove of that."""
    left = torch.isfinite(call.run(min_p=None)) & torch.isfinite(call.run(top_p=torch.ones_like(call["top_p"])))
    logits = torch.where(left, call["logits"], -torch.inf)
    return call.run(logits=logits, filtered=False, min_p=None)


@fault("negative logits divided too", "penalize_logits", "distinct_places", "values")
def divided(call: Call) -> None:
    at = call["row"].long(), call["token"].long()
    negative = call["logits"][at] < 0
    call.run(repetition=torch.where(negative, 1 / call["repetition"], call["repetition"]))


@fault("padding writes a place", "penalize_logits", "padding", "values")
def padded(call: Call) -> None:
    call.run()
    call["logits"][0, 0] += 1


@fault("a draft after a refusal counted", "aux.accept", "segments", "values")
def beyond(call: Call) -> Tensor:
    """As many rows as accepted, wherever they stand."""
    accepted = call["accepted"].clone()
    for first, count in zip(call["first"].tolist(), call["count"].tolist(), strict=True):
        part = accepted[first : first + count - 1] if count else accepted[:0]
        part.copy_(part.sort(descending=True).values)
    return call.run(accepted=accepted)


@fault("rates not cumulative", "aux.draft_commit", "later", "values")
def alone(call: Call) -> None:
    call.run()
    call["rates"][call["slots"].long(), call["column"]] = call["confidence"]


@fault("proposal in the row of the slot", "aux.draft_commit", "first", "values", "sentinel", may=("poison",))
def by_slot(call: Call) -> None:
    before = call["proposal"].clone()
    call.run()
    call["proposal"].copy_(before)
    call["proposal"][call["slots"].long()] = call["weight"]


@fault("rows at the limit given away", "aux.verify_rows", "rows-left-over", "values")
def at_the_limit(call: Call) -> Any:
    return call.run(limit=call["limit"] + 1)


@fault("NaN sorts first", "aux.verify_rows", "ties-and-nan", "values")
def nan_first(call: Call) -> Any:
    return call.run(rates=torch.where(torch.isnan(call["rates"]), 1.0, call["rates"]))

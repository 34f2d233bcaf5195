"""Faults that small numbers do not show: sums, lists and positions beyond a size, and results of another dtype."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from support.kit_faults import Call, edited, fault

Tensor = torch.Tensor
TILE = 128


@fault("terms past the first tile left out", "linear", "many-terms", "values")
def one_tile(call: Call) -> Tensor:
    def drop(data: Tensor) -> Tensor:
        data[:, TILE:] = 0
        return data

    return call.run(x=edited(call, call["x"], data=drop))


@fault("candidates past the first tiles not seen", "topk_index", "many-candidates", "values")
def few_candidates(call: Call) -> Tensor:
    scores = call["scores"].clone()
    scores[:, 1024:] = -math.inf
    return call.run(scores=scores)


@fault("entries past the first tile not read", "sparse_attn", "many-entries", "values")
def few_entries(call: Call) -> Tensor:
    return call.run(main_slots=call["main_slots"][:, :TILE].contiguous())


@fault("scores past the first tiles missing", "index_scores", "many-entries", "values", may=("rows",))
def few_scores(call: Call) -> Tensor:
    scores = call.run()
    scores[:, 1024:] = -math.inf
    return scores


@fault("tokens past the first tiles never drawn", "sample", "large_vocabulary", "values")
def few_tokens(call: Call) -> Any:
    logits = call["logits"].clone()
    logits[:, 1024:] = -math.inf
    return call.run(logits=logits)


@fault("slots of 16 bits", "kv_load", "many-entries", "values", may=("poison",))
def narrow_slots(call: Call) -> Tensor:
    return call.run(slots=call["slots"].to(torch.int16).to(torch.int32))


@fault("positions in f32", "aux.visible", "long-context", "values")
def rounded_positions(call: Call) -> Tensor:
    return call.run(positions=(call["positions"] + 1).to(torch.float32).to(torch.int32) - 1)


@fault("rows past a tile of 128 not written", "rms_norm", "odd-width-without-weight-T33", "rows")
def few_rows(call: Call) -> Any:
    y, yq = call.run()
    y[TILE:] = 0
    return y, yq


@fault("the limit of another model", "moe_experts", "clamped", "values")
def fixed_limit(call: Call) -> Tensor:
    return call.run(limit=10.0)


@fault("the eps of another model", "kv_write", "values-of-the-size-of-eps", "values")
def fixed_eps(call: Call) -> Tensor:
    return call.run(eps=1e-20)


@fault("the scale of another model", "attn_block", "another-scale", "values")
def fixed_scale(call: Call) -> Any:
    return call.run(scale=0.125)


@fault("the eps of another norm", "hc_mix", "values-of-the-size-of-eps", "values")
def fixed_norm_eps(call: Call) -> Any:
    return call.run(weights=dataclasses.replace(call["weights"], norm_eps=1e-20))


@fault("indices of 64 bits", "moe_route", "text-and-image-rows-T1", "values")
def wide_ids(call: Call) -> tuple[Tensor, Tensor]:
    experts, weights = call.run()
    return experts.to(torch.int64), weights


@fault("a result that is not rounded", "embed", "plain-T17", "values")
def not_rounded(call: Call) -> Tensor:
    return call.run().to(torch.float32)

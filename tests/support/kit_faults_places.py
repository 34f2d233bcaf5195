"""Faults of places: indices, order, memory, request slots, sampling."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from support.kit_faults import Call, fault

from tandem.contract.types import MoEBatch

Tensor = torch.Tensor


@fault("ties by the highest index", "topk_index", "ties", "values")
def unordered_ties(call: Call) -> Tensor:
    count = call["scores"].shape[1]
    mirrored = call.run(scores=call["scores"].flip(-1))
    found = torch.where(mirrored >= 0, count - 1 - mirrored, count)
    ordered = found.sort(dim=-1).values
    return torch.where(ordered == count, -1, ordered).to(torch.int32)


@fault("window one short", "aux.window_slots", "starts-resumed-and-missing-T17", "values")
def short_window(call: Call) -> Tensor:
    slots = call.run()
    slots[:, 0] = -1
    return slots


@fault("an entry seen too early", "aux.visible", "ratio-two-T17", "values")
def seen_early(call: Call) -> Tensor:
    return call.run(positions=call["positions"] + 1)


@fault("the limit included", "aux.step_inputs", "host-device", "values")
def limit_included(call: Call) -> Any:
    return call.run(limit=call["limit"] + 1)


@fault("NaN leaks from entries that hold anything", "sparse_attn", "window-only-T17", "poison", may=("values", "rows"))
def leaked(call: Call) -> Tensor:
    missing = (call["window_slots"] < 0).any(dim=-1)
    junk = call["window"].data[0, 0]  # what a clamped -1 reads, times the weight 0
    return torch.where((missing & (junk & 0x7F == 0x7F))[:, None, None], torch.nan, call.run())


@fault("NaN leaks from scratch", "kv_load", "main-T17", "poison", may=("values", "rows"))
def leaked_scratch(call: Call) -> Tensor:
    scratch = call["cache"].data[-1, 0]  # what an index of -1 reads, times 0
    return torch.where((call["slots"] < 0).unsqueeze(-1) & (scratch & 0x7F == 0x7F), torch.nan, call.run())


@fault("rows past the end read", "grouped_linear", "fp4-T17", "values")
def past_the_end(call: Call) -> Tensor:
    ends = call["ends"].clone()
    ends[-1] = call["x"].shape[0]
    return call.run(ends=ends)


@fault("an output left unwritten", "pool_expand", "some-missing-T17", "poison", may=("values", "repeat", "rows"))
def not_written(call: Call) -> Tensor:
    entries = call.run()
    return torch.where(entries < 0, torch.empty_like(entries), entries)


@fault("index -1 read as the last row", "gather_rows", "some-missing-T17", "values")
def last_row(call: Call) -> Tensor:
    return call["x"][call["index"].to(torch.int64)]


@fault("slot -1 read as entry 0", "kv_load", "main-T17", "values", "poison")
def first_entry(call: Call) -> Tensor:
    return call.run(slots=call["slots"].clamp_min(0))


@fault("scratch misplaced", "scatter_rows", "some-skipped", "values", may=("sentinel", "poison"))
def scratch_at_zero(call: Call) -> None:
    call.run(index=call["index"].clamp_min(0))


@fault("the next entry overwritten", "kv_store", "main-T17", "sentinel", may=("values", "poison", "rows"))
def neighbour(call: Call) -> None:
    call.run()
    data, taken = call["cache"].data, set(call["slots"].tolist())
    free = next(i for i in range(len(data) - 2, -1, -1) if i not in taken)
    data[free] = 0


@fault("written past the array", "aux.commit", "some-skipped", "sentinel")
def past_the_array(call: Call) -> None:
    call.run()
    length = call["length"]
    whole = torch.tensor([], dtype=length.dtype).set_(length.untyped_storage())
    after = length.storage_offset() + len(length)
    if after < len(whole):
        whole[after] = 0


@fault("padding committed to slot 0", "aux.commit", "some-skipped", "values", may=("sentinel", "poison"))
def padding_committed(call: Call) -> None:
    call.run(slots=call["slots"].clamp_min(0))


@fault("an argument used as scratch", "hc_post", "random-T17", "read-only", may=("repeat", "rows"))
def argument_written(call: Call) -> Tensor:
    trunk = call.run()
    call["y"].zero_()
    return trunk


@fault("ring one off", "compress_update", "prefill-from-the-start", "values")
def ring_off_by_one(call: Call) -> Tensor:
    latent = call.run()
    state = call["state"]
    state[:-1] = state[:-1].roll(1, dims=1)
    return latent


@fault("history of another slot", "engram_context", "decode", "values", may=("poison", "sentinel", "rows"))
def other_history(call: Call) -> Tensor:
    rows = call["rows"]
    count = len(call["history"]) - 1
    return call.run(rows=dataclasses.replace(rows, slot=torch.where(rows.slot < 0, -1, (rows.slot + 1) % count)))


@fault("products added, not combined", "engram_hash", "large-products-T17", "values")
def added(call: Call) -> Tensor:
    context = call["context"].to(torch.int64)
    mixed = (context * call["multipliers"]).cumsum(dim=1)[:, 1:]
    return (mixed.unsqueeze(-1) % call["primes"] + call["offsets"]).flatten(1)


@fault("a foreign row of the table", "engram_gather", "a-range-of-rows-T17", "values")
def foreign_row(call: Call) -> Any:
    return call.run(rows=call["rows"].roll(1, dims=1))


@fault("scores beyond the visible", "index_scores", "three-requests-T17", "values", may=("poison",))
def beyond(call: Call) -> Tensor:
    return call.run(lens=torch.where(call["lens"] > 0, (call["lens"] + 1).clamp_max(call["width"]), 0).to(torch.int32))


@fault("experts in order of index", "moe_route", "text-and-image-rows-T17", "values")
def by_index(call: Call) -> tuple[Tensor, Tensor]:
    experts, weights = call.run()
    ordered, order = experts.sort(dim=-1)
    return ordered, weights.gather(1, order)


@fault("weights of the k swapped", "moe_dispatch", "all-experts-here-T17", "values")
def swapped_weights(call: Call) -> MoEBatch:
    return call.run(weights=call["weights"].flip(-1))


@fault("a missing expert read as the last row", "moe_combine", "some-experts-elsewhere-T17", "values")
def missing_expert(call: Call) -> Tensor:
    batch = call["batch"]
    last = torch.where(batch.source < 0, len(call["y"]) - 1, batch.source).to(torch.int32)
    return call.run(batch=dataclasses.replace(batch, source=last))


@fault("shared expert added twice", "moe_combine", "with-shared-T17", "values")
def shared_twice(call: Call) -> Tensor:
    return call.run(shared=call["shared"] * 2)


@fault("an expert without rows takes the next one's", "grouped_linear", "fp4-T17", "values")
def empty_group(call: Call) -> Tensor:
    ends = call["ends"]
    sizes = torch.diff(ends, prepend=ends.new_zeros(1))
    packed = torch.cat((sizes[sizes > 0], sizes[sizes == 0]))
    return call.run(ends=packed.cumsum(0).to(torch.int32))


@fault("top-p without the token that crosses it", "process_logits", "filters", "values")
def exclusive(call: Call) -> Tensor:
    """Where the filters leave several tokens, the last of them goes."""
    logprobs = call.run()
    kept = torch.isfinite(logprobs)
    several = (kept.sum(dim=-1) > 1) & (call["top_p"] < 1)
    last = torch.where(kept, logprobs, torch.inf).argmin(dim=-1)
    logprobs[several, last[several]] = -torch.inf
    return torch.log_softmax(logprobs, dim=-1)


@fault("the same random number at every position", "sample", "plain", "values")
def reused(call: Call) -> Any:
    return call.run(position=torch.zeros_like(call["position"]))


@fault("neighbour of the token drawn", "sample", "filters", "values")
def neighbour_token(call: Call) -> Any:
    token, raw, processed = call.run()
    return torch.where(token > 0, token - 1, token), raw, processed


@fault("penalties applied twice", "adjust_logits", "distinct_places", "values")
def twice(call: Call) -> None:
    call.run()
    call.run()


@fault("bits of the mask from the other end", "mask_logits", "random", "values")
def mask_order(call: Call) -> None:
    words = call["bits"].to(torch.int64) & 0xFFFFFFFF
    turned = sum(((words >> i) & 1) << (31 - i) for i in range(32))
    call.run(bits=torch.where(turned >= 2**31, turned - 2**32, turned).to(torch.int32))


@fault("ids of equal values in another order", "top_logprobs", "ties", "values")
def other_ids(call: Call) -> tuple[Tensor, Tensor]:
    ids, logprobs = call.run(values=call["values"].flip(-1))
    return torch.where(ids >= 0, call["values"].shape[1] - 1 - ids, ids).to(torch.int32), logprobs

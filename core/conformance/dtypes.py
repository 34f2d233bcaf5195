"""The dtypes of what ops return, as the table of docs/CONTRACT.md has them."""

from __future__ import annotations

from typing import Any

import torch

I32, F32, BF16 = torch.int32, torch.float32, torch.bfloat16

# By op and output, or part of an output.  Quantised tensors are bytes; what an op writes in place keeps its dtype.
RETURNS: dict[str, dict[str, torch.dtype]] = {
    "aux.accept": {"emitted": I32},
    "aux.draft_rows": dict.fromkeys(("ids", "positions", "row_slot", "context", "own", "keys"), I32),
    "aux.entry_slots": {"slots": I32},
    "aux.group_start": {"positions": I32},
    "aux.map_entries": {"slots": I32},
    "aux.step_inputs": {"ids": I32, "positions": I32, "slot": I32},
    "aux.take": {"values": I32},
    "aux.verify_rows": dict.fromkeys(("slot", "offset", "chunk_start", "chunk_end", "counts"), I32),
    "aux.visible": {"lens": I32},
    "aux.window_slots": {"slots": I32},
    "block_max": {"blocks": BF16},
    "compress_update": {"latent": BF16},
    "dequantize": {"x": BF16},
    "draft_heads": {"logits": F32, "confidence": F32},
    "draft_sample": {"token": I32, "weight": I32},
    "embed": {"x": BF16},
    "engram_context": {"context": I32},
    "engram_gate": {"trunk": BF16},
    "engram_hash": {"rows": torch.int64},
    "group_linear": {"y": BF16},
    "grouped_linear": {"y": BF16},
    "hc_collapse": {"x": BF16},
    "hc_enter": {"x": BF16, "mix": F32},
    "hc_expand": {"trunk": BF16},
    "hc_mean": {"x": BF16},
    "hc_mix": {"pre": F32, "post": F32, "comb": F32},
    "hc_post": {"trunk": BF16},
    "hc_step": {"trunk": BF16, "x": BF16, "mix": F32},
    "head_sample": {"token": I32},
    "index_scores": {"scores": BF16},
    "index_scores_at": {"scores": BF16},
    "kv_load": {"x": BF16},
    "kv_write": {"normed": BF16},
    "moe_block": {"y": BF16},
    "moe_combine": {"y": BF16},
    "moe_dispatch": {"batch.weight": F32, "batch.ends": I32, "batch.source": I32},
    "moe_experts": {"y": BF16},
    "moe_route": {"experts": I32, "weights": F32},
    "pool_expand": {"entries": I32},
    "process_logits": {"logprobs": F32},
    "rms_norm": {"y": BF16},
    "rope": {"y": BF16},
    "sample": {"token": I32, "logprob_raw": F32, "logprob": F32},
    "sparse_attn": {"o": BF16},
    "spec_verify": {"token": I32, "accepted": I32, "logprob_raw": F32, "logprob": F32},
    "top_logprobs": {"ids": I32, "logprobs": F32},
    "topk_index": {"index": I32},
}  # fmt: skip


def wrong_dtype(op: str, name: str, value: torch.Tensor, data: dict[str, Any]) -> str | None:
    """What is wrong with the dtype of a leaf of an output; None where nothing is.

    Args:
        name: dotted, as `calls.leaves` gives it.
        data: the call's arguments by name, on the host.
    """
    stated = RETURNS.get(op, {})
    want = stated.get(name, stated.get(name.partition(".")[0]))
    if name.endswith((".data", ".scale")):
        want = torch.uint8
    if op == "linear":
        want = data["out_dtype"]
    if op == "gather_rows":
        x = data["x"]
        want = getattr(x, "value", x).dtype
    return None if want is None or value.dtype is want else f"is {value.dtype}, want {want}"

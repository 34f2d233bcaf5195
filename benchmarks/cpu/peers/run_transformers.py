"""transformers on its own DeepseekV4ForCausalLM: fp32 and bf16, and bf16 with grouped products of experts."""

from __future__ import annotations

from typing import Any

import torch
from common import Job, answer, measure, weights
from dims import MID
from torch_peer import TorchEngine, fill_routing, tensors
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

VARIANTS = (("fp32 eager", torch.float32, "eager"), ("bf16 eager", torch.bfloat16, "eager"),
            ("bf16 grouped_mm", torch.bfloat16, "grouped_mm"))  # fmt: skip


def config() -> Any:
    """The configuration at the dimensions of `dims`."""
    return DeepseekV4Config(
        vocab_size=MID.vocab,
        hidden_size=MID.hidden,
        moe_intermediate_size=MID.ffn,
        num_hidden_layers=MID.layers,
        num_attention_heads=MID.heads,
        head_dim=MID.head_dim,
        qk_rope_head_dim=MID.rope_dim,
        q_lora_rank=MID.q_lora,
        num_experts_per_tok=MID.top_k,
        n_routed_experts=MID.experts,
        compress_ratios=list(MID.ratios),
        num_hash_layers=MID.hash_layers,
        hc_mult=MID.streams,
        sliding_window=MID.window,
        o_groups=MID.o_groups,
        o_lora_rank=MID.o_lora,
        index_n_heads=MID.index_heads,
        index_head_dim=MID.index_dim,
        index_topk=MID.index_topk,
        num_nextn_predict_layers=0,
        max_position_embeddings=65536,
    )


def main() -> None:
    """Measure all variants."""
    job, rows = Job.from_argv(), []
    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    for name, dtype, experts in VARIANTS:
        model = DeepseekV4ForCausalLM(config()).to(dtype).eval()
        model.set_experts_implementation(experts)
        fill_routing(model)
        engine = TorchEngine(model, {"logits_to_keep": 1})
        sizes = weights(tensors(model))
        rows.append({"variant": name} | sizes | measure(job, lambda count, tokens, engine=engine: engine, most=8))
    answer(rows)


if __name__ == "__main__":
    main()

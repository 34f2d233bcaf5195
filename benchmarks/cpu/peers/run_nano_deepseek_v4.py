"""nano-deepseek-v4 in fp32, the only form that it has."""

from __future__ import annotations

import torch
from common import Job, answer, measure, weights
from dims import MID
from nano_deepseek_v4 import DeepSeekV4Config, DeepSeekV4ForCausalLM
from torch_peer import TorchEngine, fill_routing, tensors


def main() -> None:
    """Measure it."""
    job = Job.from_argv()
    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    config = DeepSeekV4Config(
        vocab_size=MID.vocab,
        hidden_size=MID.hidden,
        moe_intermediate_size=MID.ffn,
        num_hidden_layers=MID.layers,
        num_attention_heads=MID.heads,
        head_dim=MID.head_dim,
        partial_rotary_factor=MID.rope_dim / MID.head_dim,
        q_lora_rank=MID.q_lora,
        num_experts_per_tok=MID.top_k,
        n_routed_experts=MID.experts,
        compress_ratios=list(MID.ratios),
        num_hash_layers=MID.hash_layers,
        hc_mult=MID.streams,
        hc_sinkhorn_iters=20,
        sliding_window=MID.window,
        o_groups=MID.o_groups,
        o_lora_rank=MID.o_lora,
        index_n_heads=MID.index_heads,
        index_head_dim=MID.index_dim,
        index_topk=MID.index_topk,
        num_nextn_predict_layers=0,
        max_position_embeddings=65536,
    )
    model = DeepSeekV4ForCausalLM(config).eval()
    fill_routing(model)
    engine = TorchEngine(model, {})
    row = {"variant": "fp32"} | weights(tensors(model)) | measure(job, lambda count, tokens: engine, most=8)
    answer([row])


if __name__ == "__main__":
    main()

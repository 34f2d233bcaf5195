"""The shipped model's configuration.

Sizes are chosen so that two CPU cores train it in about two hours and every feature of the architecture is live
well within the training context: 512 tokens against a window of 32, 64 selected entries and a pool of 128.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tandem.model.config import ModelConfig
from tandem.model.engram_tables import compressed_vocabulary, hash_primes
from tools.train_nano.tokenizer import IMAGE_TOKEN_ID, NOISE_TOKEN_ID, VOCAB_SIZE

_TEXT: dict[str, Any] = {
    "model_type": "deepseek_v41_text",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 192,
    "num_hidden_layers": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-20,
    "max_position_embeddings": 65536,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 96,
    "qk_rope_head_dim": 32,
    "q_lora_rank": 128,
    "o_groups": 2,
    "o_lora_rank": 96,
    "sliding_window": 32,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 4096,
    },
    "compress_ratios": [0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0],
    "kv_source_layer_ids": [1, 4],
    "index_source_layer_ids": [1, 3, 4, 6],
    "candidate_source_layer_id": 4,
    "candidate_topk_blocks": 16,
    "candidate_block_size": 8,
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 64,
    "moe_intermediate_size": 192,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "engram_layer_ids": [1, 3],
    "engram_vocab_size": 4000,
    "engram_max_ngram_size": 4,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_pad_token_id": 2,
    "num_nextn_predict_layers": 3,
    "dspark_block_size": 5,
    "dspark_noise_token_id": NOISE_TOKEN_ID,
    "dspark_target_layer_ids": [5, 6, 7],
    "dspark_markov_rank": 64,
    "dspark_n_routed_experts": 8,
    "dspark_num_experts_per_tok": 2,
}

_TOP: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "image_token_id": IMAGE_TOKEN_ID,
    "quantization_config": {
        "quant_method": "fp8",
        "expert_dtype": "fp4",
        "activation_scheme": "dynamic",
        "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0",
    },
}

LAYERS_AND_STAGES = len(_TEXT["compress_ratios"])  # of the backbone and of the draft module


def nano_config(tokenizer_json: Path, text: Mapping[str, Any] | None = None) -> ModelConfig:
    """The model's configuration for a tokenizer, Engram sizes derived.

    Args:
        tokenizer_json: decides which token texts Engram holds for equal.
        text: replaces fields of ``text_config``.
    """
    raw = copy.deepcopy(_TOP) | {"text_config": copy.deepcopy(_TEXT) | dict(text or {})}
    fields = raw["text_config"]
    primes = hash_primes(
        len(fields["engram_layer_ids"]),
        fields["engram_vocab_size"],
        fields["engram_max_ngram_size"],
        fields["engram_n_heads"],
    )
    fields["engram_num_embeddings"] = [sum(map(sum, layer)) for layer in primes]
    fields["engram_compressed_vocab_size"] = compressed_vocabulary(tokenizer_json)[1]
    return ModelConfig.from_dict(raw)

"""Makes complete synthetic checkpoints: a tiny model with every feature of the real one."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tandem.checkpoint.inventory import TensorSpec, tensor_inventory
from tandem.checkpoint.quantize import quantize_fp4_rows, quantize_fp8_blocks, quantize_fp8_rows
from tandem.checkpoint.tiny_tokenizer import IMAGE_TOKEN_ID, NOISE_TOKEN_ID, VOCAB_SIZE, write_tiny_tokenizer
from tandem.checkpoint.tiny_weights import random_rows
from tandem.checkpoint.writer import TORCH_DTYPES, CheckpointWriter
from tandem.errors import ConfigError
from tandem.model.config import ModelConfig
from tandem.model.engram_tables import compressed_vocabulary, hash_primes

_TEXT: dict[str, Any] = {
    "model_type": "deepseek_v41_text",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "num_hidden_layers": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-20,
    "max_position_embeddings": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 64,
    "o_groups": 2,
    "o_lora_rank": 32,
    "sliding_window": 8,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 64,
    },
    "compress_ratios": [0, 2, 2, 2, 1, 1, 1, 1, 0, 0],
    "kv_source_layer_ids": [1, 4],
    "index_source_layer_ids": [1, 3, 4, 6],
    "candidate_source_layer_id": 4,
    "candidate_topk_blocks": 4,
    "candidate_block_size": 8,
    "index_n_heads": 2,
    "index_head_dim": 32,
    "index_topk": 16,
    "moe_intermediate_size": 64,
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
    "engram_layer_ids": [1, 2],
    "engram_vocab_size": 101,
    "engram_max_ngram_size": 4,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_pad_token_id": 2,
    "num_nextn_predict_layers": 2,
    "dspark_block_size": 3,
    "dspark_noise_token_id": NOISE_TOKEN_ID,
    "dspark_target_layer_ids": [5, 6, 7],
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
}

_CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "image_token_id": IMAGE_TOKEN_ID,
    "text_config": _TEXT,
    "vision_config": {
        "model_type": "deepseek_v41_vision",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "patch_size": 14,
        "downsample_ratio": 3,
        "rope_theta": 10000,
        "max_image_tokens": 64,
        "min_pixels": 1764,
        "max_wh_ratio": None,
    },
    "quantization_config": {
        "quant_method": "fp8",
        "expert_dtype": "fp4",
        "activation_scheme": "dynamic",
        "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0",
    },
}


def make_tiny(out_dir: str | Path, seed: int, overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """Write a complete checkpoint with random weights: config, tokenizer, shards and index.

    Args:
        out_dir: directory to write; created if needed.
        seed: 0 or more; the same seed and overrides give the same bytes.
        overrides: values that replace those of the tiny ``config.json``, nested like it.  The Engram row
            counts and the compressed vocabulary size are derived afterwards.

    Returns:
        the configuration written.

    Raises:
        ConfigError: the seed is negative or the overrides do not make a valid configuration.
    """
    if seed < 0:
        raise ConfigError(
            "a seed is negative",
            where="seed",
            why=f"it is {seed}; allowed: 0 or more",
            fix="choose another seed",
        )
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    write_tiny_tokenizer(out / "tokenizer.json")
    raw = _merge(_CONFIG, overrides or {})
    _derive_engram(raw["text_config"], out / "tokenizer.json")
    config = ModelConfig.from_dict(raw)
    (out / "config.json").write_text(json.dumps(config.to_dict(), indent=2) + "\n", encoding="utf-8")
    specs = tensor_inventory(config)
    with CheckpointWriter(out, specs, max_shard_bytes=1 << 30) as writer:
        for spec in specs:
            if spec.dtype != "F8_E8M0":  # scales come with their weight
                _write_tensor(writer, spec, seed)
    return config


def _write_tensor(writer: CheckpointWriter, spec: TensorSpec, seed: int) -> None:
    if spec.dtype == "I8":
        quantize = quantize_fp4_rows
    elif ".engram.embed." in spec.name:
        quantize = quantize_fp8_rows
    else:
        quantize = quantize_fp8_blocks
    for rows in random_rows(spec, seed):
        if spec.dtype in ("I8", "F8_E4M3"):
            codes, scale = quantize(rows)
            writer.write(spec.name, codes)
            writer.write(spec.name.removesuffix("weight") + "scale", scale)
        else:
            writer.write(spec.name, rows.to(TORCH_DTYPES[spec.dtype]))


def _derive_engram(text: dict[str, Any], tokenizer_json: Path) -> None:
    sizes = hash_primes(
        len(text["engram_layer_ids"]),
        text["engram_vocab_size"],
        text["engram_max_ngram_size"],
        text["engram_n_heads"],
    )
    text["engram_num_embeddings"] = [sum(map(sum, layer)) for layer in sizes]
    text["engram_compressed_vocab_size"] = compressed_vocabulary(tokenizer_json)[1]


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(base))
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if nested else copy.deepcopy(value)
    return merged

"""A small random checkpoint with every text feature live, made in memory."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from .vocabulary import compressed_vocabulary

SPECIALS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")


def byte_characters() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE, by byte."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(spare)) for b in range(256)]


def build_tokenizer() -> Tokenizer:
    """Three special tokens, then the 256 bytes in order (id = 3 + byte); no merges."""
    vocab = {s: i for i, s in enumerate((*SPECIALS, *byte_characters()))}
    added = [
        {"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i, s in enumerate(SPECIALS)
    ]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    parts = {"added_tokens": added, "pre_tokenizer": level, "decoder": level, "model": model}
    return Tokenizer.from_str(json.dumps({"version": "1.0", **parts}))


def tiny_config() -> dict[str, Any]:
    """config.json of the tiny model: both ratios, two KV sources, a candidate pool, two Engram layers."""
    text: dict[str, Any] = {
        "model_type": "deepseek_v41_text", "vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "qk_rope_head_dim": 16,
        "q_lora_rank": 64, "o_groups": 2, "o_lora_rank": 32, "sliding_window": 8,
        "compress_ratios": [0, 2, 2, 2, 1, 1, 1, 1, 0, 0], "kv_source_layer_ids": [1, 4],
        "index_source_layer_ids": [1, 3, 4, 6], "candidate_source_layer_id": 4, "candidate_topk_blocks": 4,
        "candidate_block_size": 8, "index_n_heads": 2, "index_head_dim": 32, "index_topk": 16,
        "rope_theta": 10000, "compress_rope_theta": 160000,
        "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64,
                         "beta_fast": 32, "beta_slow": 1},
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-20, "hidden_act": "silu", "swiglu_limit": 10.0,
        "moe_intermediate_size": 64, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True,
        "routed_scaling_factor": 1.5, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
        "engram_layer_ids": [1, 2], "engram_vocab_size": 101, "engram_num_embeddings": [660, 864],
        "engram_max_ngram_size": 4, "engram_n_heads": 2, "engram_head_dim": 32, "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 230, "num_nextn_predict_layers": 2, "dspark_block_size": 3,
        "dspark_noise_token_id": 499, "dspark_target_layer_ids": [5, 6, 7], "dspark_markov_rank": 32,
        "dspark_n_routed_experts": 4, "dspark_num_experts_per_tok": 2, "attention_bias": False,
        "attention_dropout": 0.0, "tie_word_embeddings": False,
    }  # fmt: skip
    return {
        "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 500, "text_config": text,
        "quantization_config": {"quant_method": "fp8", "expert_dtype": "fp4", "activation_scheme": "dynamic",
                                "weight_block_size": [32, 32], "scale_fmt": "ue8m0"},
    }  # fmt: skip


def _scale_bytes(peak: Tensor, largest: float) -> Tensor:
    """E8M0 bytes of the smallest powers of two that bring `peak` down to `largest` or below."""
    return (torch.ceil(torch.log2(peak / largest)) + 127).clamp(1, 254).to(torch.uint8)


class Builder:
    """Collects random tensors under official names, in official storage formats."""

    def __init__(self, config: dict[str, Any], seed: int) -> None:
        self.text = config["text_config"]
        self.tensors: dict[str, Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, std: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=self._generator) * std

    def plain(self, name: str, *shape: int, std: float) -> None:
        self.tensors[name] = self.normal(*shape, std=std).to(torch.bfloat16)

    def norm(self, name: str, *shape: int) -> None:
        self.tensors[name] = (1.0 + self.normal(*shape, std=0.1)).to(torch.bfloat16)

    def fp8(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        """32 x 32 blocks; `gain` is the output size for inputs of size one."""
        value = self.normal(rows, columns, std=gain / math.sqrt(columns))
        peak = value.abs().view(rows // 32, 32, columns // 32, 32).amax(dim=(1, 3))
        self._store_fp8(name, value, _scale_bytes(peak, 448.0), 32)

    def fp8_rows(self, name: str, rows: int, columns: int) -> None:
        value = self.normal(rows, columns)
        peak = value.abs().view(rows, columns // 32, 32).amax(dim=2)
        self._store_fp8(name, value, _scale_bytes(peak, 448.0), 1)

    def _store_fp8(self, name: str, value: Tensor, scale: Tensor, block_rows: int) -> None:
        spread = torch.exp2(scale.float() - 127).repeat_interleave(block_rows, 0).repeat_interleave(32, 1)
        self.tensors[f"{name}.weight"] = (value / spread).to(torch.float8_e4m3fn)
        self.tensors[f"{name}.scale"] = scale.view(torch.float8_e8m0fnu)

    def fp4(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        """Random packed E2M1 codes: their standard deviation in units of the scale is close to 2."""
        code = self.normal(rows, columns, std=2.0)
        magnitude = torch.bucketize(code.abs(), torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]))
        nibble = magnitude + 8 * (code < 0)
        packed = (nibble[:, 0::2] + 16 * nibble[:, 1::2]).to(torch.uint8)
        exponent = round(math.log2(gain / (2.0 * math.sqrt(columns)))) + 127
        wobble = torch.randint(-1, 2, (rows, columns // 32), generator=self._generator)
        self.tensors[f"{name}.weight"] = packed.view(torch.int8)
        self.tensors[f"{name}.scale"] = (wobble + exponent).to(torch.uint8).view(torch.float8_e8m0fnu)


def _add_hyper_connections(b: Builder, prefix: str, entered_as: int) -> None:
    """Trained-like values: each sub-layer reads mostly one stream, streams mostly keep to themselves."""
    m, width = b.text["hc_mult"], b.text["hc_mult"] * b.text["hidden_size"]
    pre = torch.full((m,), -3.0)
    pre[entered_as % m] = 3.0
    comb = torch.full((m, m), -1.5) + 3.0 * torch.eye(m)
    b.tensors[f"{prefix}_fn"] = b.normal(m * m + 2 * m, width, std=1.0 / math.sqrt(width))
    b.tensors[f"{prefix}_base"] = torch.cat((pre, b.normal(m, std=0.5), comb.flatten()))
    b.tensors[f"{prefix}_scale"] = torch.tensor([0.3, 0.3, 0.3])


def _add_attention(b: Builder, layer: int) -> None:
    t, p = b.text, f"layers.{layer}.attn"
    hidden, heads, dim, rank = t["hidden_size"], t["num_attention_heads"], t["head_dim"], t["q_lora_rank"]
    groups, low = t["o_groups"], t["o_lora_rank"]
    b.tensors[f"{p}.attn_sink"] = b.normal(heads)
    b.fp8(f"{p}.wq_a", rank, hidden)
    b.norm(f"{p}.q_norm.weight", rank)
    b.fp8(f"{p}.wq_b", heads * dim, rank)
    b.fp8(f"{p}.wkv", dim, hidden)
    b.norm(f"{p}.kv_norm.weight", dim)
    b.fp8(f"{p}.wo_a", groups * low, heads * dim // groups)
    b.fp8(f"{p}.wo_b", hidden, groups * low, gain=0.5)
    std = 1.0 / math.sqrt(hidden)
    if layer in t["kv_source_layer_ids"]:
        b.plain(f"{p}.compressor.wkv.weight", dim, hidden, std=std)
        b.norm(f"{p}.compressor.norm.weight", dim)
        if t["compress_ratios"][layer] > 1:
            b.plain(f"{p}.compressor.wgate.weight", dim, hidden, std=std)
        b.plain(f"{p}.indexer.wk.weight", t["index_head_dim"], dim, std=1.0 / math.sqrt(dim))
        b.norm(f"{p}.indexer.k_norm.weight", t["index_head_dim"])
    if layer in t["index_source_layer_ids"]:
        b.fp8(f"{p}.indexer.wq_b", t["index_n_heads"] * t["index_head_dim"], rank)
        b.plain(f"{p}.indexer.weights_proj.weight", t["index_n_heads"], hidden, std=std)


def _add_experts(b: Builder, layer: int) -> None:
    t, p = b.text, f"layers.{layer}.ffn"
    hidden, inner, count = t["hidden_size"], t["moe_intermediate_size"], t["n_routed_experts"]
    b.plain(f"{p}.gate.weight", count, hidden, std=1.0 / math.sqrt(hidden))
    b.tensors[f"{p}.gate.bias"] = b.normal(count, std=0.2)
    b.tensors[f"{p}.gate.bias_vl"] = b.normal(count, std=0.2)
    for name in ("w1", "w3"):
        b.fp8(f"{p}.shared_experts.{name}", inner, hidden)
    b.fp8(f"{p}.shared_experts.w2", hidden, inner, gain=0.5)
    for e in range(count):
        for name in ("w1", "w3"):
            b.fp4(f"{p}.experts.{e}.{name}", inner, hidden)
        b.fp4(f"{p}.experts.{e}.w2", hidden, inner, gain=0.5)


def _add_engram(b: Builder, layer: int, rows: int) -> None:
    t, p = b.text, f"layers.{layer}.engram"
    hidden, m, dim = t["hidden_size"], t["hc_mult"], t["engram_head_dim"]
    b.fp8_rows(f"{p}.embed", rows, dim)
    inner = (t["engram_max_ngram_size"] - 1) * t["engram_n_heads"] * dim
    b.fp8(f"{p}.wkv", (m + 1) * hidden, inner, gain=0.5)
    b.norm(f"{p}.q_weight", m, hidden)
    b.norm(f"{p}.k_weight", m, hidden)


def build_tiny(seed: int = 0) -> tuple[dict[str, Any], dict[str, Tensor], np.ndarray]:
    """config, text tensors (no draft stages, no vision) and the compressed vocabulary of `build_tokenizer`.

    The embedding is several times as large as a sub-layer's output, so that legal rounding stays small
    beside the signal. Only ids below 259 are tokens of the tokenizer.
    """
    config = tiny_config()
    b = Builder(config, seed)
    t = b.text
    for layer in range(t["num_hidden_layers"]):
        p = f"layers.{layer}"
        _add_hyper_connections(b, f"{p}.hc_attn", layer)
        _add_hyper_connections(b, f"{p}.hc_ffn", layer)
        b.norm(f"{p}.attn_norm.weight", t["hidden_size"])
        b.norm(f"{p}.ffn_norm.weight", t["hidden_size"])
        _add_attention(b, layer)
        _add_experts(b, layer)
    for layer, rows in zip(t["engram_layer_ids"], t["engram_num_embeddings"], strict=True):
        _add_engram(b, layer, rows)
    b.plain("embed.weight", t["vocab_size"], t["hidden_size"], std=4.0)
    b.plain("head.weight", t["vocab_size"], t["hidden_size"], std=1.0 / math.sqrt(t["hidden_size"]))
    b.norm("norm.weight", t["hidden_size"])
    for name in ("image_start", "image_end", "image_newline"):
        b.plain(name, t["hidden_size"], std=4.0)
    return config, b.tensors, compressed_vocabulary(build_tokenizer())

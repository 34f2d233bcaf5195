"""The numbers of config.json that the text model needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """Text settings; `*_sources` are ascending layer ids, `candidate_source` is -1 when there is no pool."""

    vocab_size: int
    hidden_size: int
    n_layers: int
    n_heads: int
    head_dim: int
    rope_dim: int
    o_groups: int
    window: int
    ratios: tuple[int, ...]
    kv_sources: tuple[int, ...]
    index_sources: tuple[int, ...]
    index_k_sources: tuple[int, ...]
    candidate_source: int
    candidate_blocks: int
    candidate_block_size: int
    index_heads: int
    index_head_dim: int
    index_topk: int
    rope_theta: float
    compress_theta: float
    rope_scaling: dict[str, Any]
    norm_eps: float
    swiglu_limit: float
    n_experts: int
    experts_per_token: int
    route_scale: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layers: tuple[int, ...]
    engram_vocab_size: int
    engram_rows: tuple[int, ...]
    engram_max_ngram: int
    engram_heads: int
    engram_pad: int
    engram_compressed: int

    @staticmethod
    def source_of(sources: tuple[int, ...], layer: int) -> int:
        """The nearest source at or before the layer."""
        return max(s for s in sources if s <= layer)


def read_settings(config: dict[str, Any]) -> Settings:
    """Settings from a parsed config.json; refuses the variants this oracle does not describe."""
    text = config["text_config"]
    for field, expected in (("hc_shifted", True), ("use_fp4_sparse_kv", True), ("norm_topk_prob", True)):
        if text.get(field, expected) is not expected:
            raise ValueError(f"the oracle only knows {field}={expected}")
    if text.get("num_hash_layers"):
        raise ValueError("the oracle knows no token-id hash routing")
    if text["scoring_func"] != "sqrtsoftplus" or text["n_shared_experts"] != 1:
        raise ValueError("the oracle only knows sqrtsoftplus routing with one shared expert")
    candidate = text.get("candidate_source_layer_id")
    return Settings(
        vocab_size=text["vocab_size"],
        hidden_size=text["hidden_size"],
        n_layers=text["num_hidden_layers"],
        n_heads=text["num_attention_heads"],
        head_dim=text["head_dim"],
        rope_dim=text["qk_rope_head_dim"],
        o_groups=text["o_groups"],
        window=text["sliding_window"],
        ratios=tuple(text["compress_ratios"]),
        kv_sources=tuple(text["kv_source_layer_ids"]),
        index_sources=tuple(text["index_source_layer_ids"]),
        index_k_sources=tuple(text.get("index_k_source_layer_ids") or text["kv_source_layer_ids"]),
        candidate_source=-1 if candidate is None else candidate,
        candidate_blocks=text["candidate_topk_blocks"],
        candidate_block_size=text["candidate_block_size"],
        index_heads=text["index_n_heads"],
        index_head_dim=text["index_head_dim"],
        index_topk=text["index_topk"],
        rope_theta=float(text["rope_theta"]),
        compress_theta=float(text["compress_rope_theta"]),
        rope_scaling=text["rope_scaling"],
        norm_eps=text["rms_norm_eps"],
        swiglu_limit=text["swiglu_limit"],
        n_experts=text["n_routed_experts"],
        experts_per_token=text["num_experts_per_tok"],
        route_scale=text["routed_scaling_factor"],
        hc_mult=text["hc_mult"],
        hc_sinkhorn_iters=text["hc_sinkhorn_iters"],
        hc_eps=text["hc_eps"],
        engram_layers=tuple(text["engram_layer_ids"]),
        engram_vocab_size=text["engram_vocab_size"],
        engram_rows=tuple(text["engram_num_embeddings"]),
        engram_max_ngram=text["engram_max_ngram_size"],
        engram_heads=text["engram_n_heads"],
        engram_pad=text["engram_pad_token_id"],
        engram_compressed=text["engram_compressed_vocab_size"],
    )

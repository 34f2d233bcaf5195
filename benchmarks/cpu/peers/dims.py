"""Dimensions of the peers' model, DeepSeek-V4 at the middle size.  Scripts of other environments read this file too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dims:
    """Sizes in elements; the fields are those of a V4 configuration."""

    vocab: int = 32_000
    hidden: int = 768
    layers: int = 8
    heads: int = 12
    head_dim: int = 128
    rope_dim: int = 64
    q_lora: int = 384
    o_groups: int = 4
    o_lora: int = 128
    window: int = 128
    ratios: tuple[int, ...] = (0, 0, 4, 128, 4, 128, 4, 128)
    index_heads: int = 8
    index_dim: int = 128
    index_topk: int = 512
    experts: int = 32
    top_k: int = 4
    ffn: int = 384
    streams: int = 4
    hash_layers: int = 2


MID = Dims()

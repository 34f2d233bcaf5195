"""The three sizes that are measured: their configurations, exact parameter counts, and where their files lie.

``nano`` is the model that comes with Tandem.  ``mid`` has every feature of the architecture at the dimensions at which
the peers run their nearest model (`benchmarks.cpu.peers.dims`).  ``wide`` has the official layer dimensions, cut to
one layer of ratio 2 with Engram and one of ratio 1 with the candidate pool.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.cpu.peers.dims import MID
from tandem.checkpoint.inventory import TensorGroup, tensor_inventory
from tandem.checkpoint.shipped import SHIPPED, shipped_model
from tandem.checkpoint.totals import inventory_totals
from tandem.model.config import ModelConfig
from tandem.model.engram_tables import hash_primes

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"
NAMES = ("nano", "mid", "wide")
OFFICIAL = SHIPPED.parent / "official_config.json"

ABOUT = {
    "nano": "the small model that comes with Tandem",
    "mid": "every feature of the architecture at the peers' dimensions, random weights",
    "wide": "official layer dimensions cut to two layers (ratio 2 with Engram, ratio 1 with candidate pool), 96 of 384 "
    "experts, Engram segments of 40,000 rows in place of 16,000,000, no draft stages, no image encoder; random weights",
}

_MID: dict[str, Any] = {
    "vocab_size": MID.vocab,
    "hidden_size": MID.hidden,
    "num_hidden_layers": MID.layers,
    "num_attention_heads": MID.heads,
    "head_dim": MID.head_dim,
    "qk_rope_head_dim": MID.rope_dim,
    "q_lora_rank": MID.q_lora,
    "o_groups": MID.o_groups,
    "o_lora_rank": MID.o_lora,
    "sliding_window": MID.window,
    "compress_ratios": [0, 2, 2, 2, 1, 1, 1, 1, 0, 0],
    "kv_source_layer_ids": [1, 4],
    "index_source_layer_ids": [1, 3, 4, 6],
    "candidate_source_layer_id": 4,
    "candidate_topk_blocks": 512,
    "candidate_block_size": 8,
    "index_n_heads": MID.index_heads,
    "index_head_dim": MID.index_dim,
    "index_topk": MID.index_topk,
    "moe_intermediate_size": MID.ffn,
    "n_routed_experts": MID.experts,
    "num_experts_per_tok": MID.top_k,
    "hc_mult": MID.streams,
    "engram_layer_ids": [1, 2],
    "engram_vocab_size": 40_000,
    "engram_max_ngram_size": 4,
    "engram_n_heads": 4,
    "engram_head_dim": 64,
    "num_nextn_predict_layers": 2,
    "dspark_noise_token_id": MID.vocab - 2,
    "dspark_target_layer_ids": [5, 6, 7],
    "dspark_markov_rank": 64,
    "dspark_n_routed_experts": 8,
    "dspark_num_experts_per_tok": 2,
}

_WIDE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "compress_ratios": [2, 1],
    "kv_source_layer_ids": [0, 1],
    "index_source_layer_ids": [0, 1],
    "candidate_source_layer_id": 1,
    "n_routed_experts": 96,
    "engram_layer_ids": [0],
    "engram_vocab_size": 40_000,
    "num_nextn_predict_layers": 0,
    "dspark_target_layer_ids": [],
}


def raw_config(name: str, compressed: int, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The ``config.json`` of a synthetic size.

    Args:
        name: mid or wide.
        compressed: classes of tokens that its tokenizer gives (Engram).
        changes: further values of the text configuration, for trying smaller ones.
    """
    raw: dict[str, Any] = copy.deepcopy(json.loads(OFFICIAL.read_text(encoding="utf-8")))
    text = raw["text_config"]
    text |= (_MID if name == "mid" else _WIDE) | dict(changes or {})
    raw["image_token_id"] = text["vocab_size"] - 1
    primes = hash_primes(
        len(text["engram_layer_ids"]),
        text["engram_vocab_size"],
        text["engram_max_ngram_size"],
        text["engram_n_heads"],
    )
    text["engram_num_embeddings"] = [sum(map(sum, layer)) for layer in primes]
    text["engram_compressed_vocab_size"] = compressed
    raw["vision_config"] = None
    return raw


def directory(name: str, compressed: int = 0) -> Path:
    """Where the checkpoint of a size lies; that of a synthetic one is named by a hash of its configuration."""
    if name == "nano":
        return shipped_model()
    text = json.dumps(raw_config(name, compressed), sort_keys=True)
    return BUILD / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def parameters(config: ModelConfig) -> dict[str, int]:
    """Exact counts from the tensor inventory: an fp4 byte counts as two, scales as none.

    Returns:
        total: everything stored.  text: without draft stages and images.  engram_tables: of text.  active: what a
        decoded token uses (layers, of the experts its own, head).  text_bytes: stored bytes of text.
    """
    specs = tensor_inventory(config)
    totals = inventory_totals(config, specs)
    text = [spec for spec in specs if spec.group is TensorGroup.TEXT]
    return {
        "total": sum(spec.params for spec in specs),
        "text": sum(spec.params for spec in text),
        "engram_tables": totals.engram_tables,
        "draft": totals.dspark,
        "active": totals.active_decode + totals.engram - totals.engram_tables,
        "text_bytes": sum(spec.nbytes for spec in text),
        "bytes": totals.nbytes,
    }

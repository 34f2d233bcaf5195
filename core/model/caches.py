"""The caches and per-request state arrays of one model instance, with the layouts that size them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from tandem.contract.backend import Backend
from tandem.contract.types import CacheKind, KVCache, KVLayout, QFormat
from tandem.errors import ConfigError
from tandem.model.config import TextConfig

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Sizes that the engine decides.

    Args:
        block_size: tokens per main block.
        window_block: tokens per window block.
        num_blocks, num_window_blocks: pool sizes.
        max_slots: request slots; state arrays have one more, the scratch slot.
        backtrack: rows that may be overwritten after a rejected draft, two steps in flight counted.
        draft_tokens: drafts made after each drawn token; 0 loads no draft module.
    """

    block_size: int
    window_block: int
    num_blocks: int
    num_window_blocks: int
    max_slots: int
    backtrack: int = 0
    draft_tokens: int = 0


def main_layout(text: TextConfig, ratio: int, block_size: int) -> KVLayout:
    """Compressed KV of one source layer."""
    return KVLayout(CacheKind.MAIN, QFormat.NVFP4, text.head_dim, block_size // ratio)


def index_layout(text: TextConfig, ratio: int, block_size: int) -> KVLayout:
    """Index keys of one source layer."""
    return KVLayout(CacheKind.INDEX, QFormat.MXFP4, text.index_head_dim, block_size // ratio)


def window_layout(text: TextConfig, window_block: int) -> KVLayout:
    """Sliding-window KV of one layer."""
    return KVLayout(CacheKind.WINDOW, QFormat.MXFP8, text.head_dim, window_block)


def window_layers(text: TextConfig, spec: CacheSpec) -> int:
    """Layers that have a window cache: those of the backbone, then the draft stages where they are used."""
    return text.num_hidden_layers + (text.num_nextn_predict_layers if spec.draft_tokens else 0)


def global_bytes_per_token(text: TextConfig, block_size: int) -> float:
    """Bytes of main and index caches per original token, from the layouts."""
    total = 0
    for layer in text.kv_source_layer_ids:
        ratio = text.ratio(layer)
        total += main_layout(text, ratio, block_size).block_bytes
        total += index_layout(text, ratio, block_size).block_bytes
    return total / block_size


@dataclass(slots=True)
class ModelCaches:
    """Device memory that outlives a step.

    main and index are keyed by source layer, compressor by source layers of ratio >= 2, window by layer; draft stage i
    counts as layer num_hidden_layers + i there, and holds keys made from the backbone's features.  draft holds the keys
    of the draft rows, ``dspark_block_size`` for each request slot; nothing in it outlives a call.
    """

    spec: CacheSpec
    main: dict[int, KVCache] = field(default_factory=dict)
    index: dict[int, KVCache] = field(default_factory=dict)
    window: dict[int, KVCache] = field(default_factory=dict)
    compressor: dict[int, Tensor] = field(default_factory=dict)  # f32 [R + 1, Ws, 2, D]
    history: Tensor | None = None  # int32 [R + 1, Rh]
    draft: KVCache | None = None


def allocate(backend: Backend, text: TextConfig, spec: CacheSpec) -> ModelCaches:
    """Allocate all caches; memory of paged caches holds anything.

    Raises:
        ConfigError: the block size does not fit the compress ratios.
    """
    caches = ModelCaches(spec)
    slots = spec.max_slots + 1
    for layer in range(window_layers(text, spec)):
        caches.window[layer] = backend.kv_alloc(window_layout(text, spec.window_block), spec.num_window_blocks)
    for layer in text.kv_source_layer_ids:
        ratio = text.ratio(layer)
        if spec.block_size % ratio or spec.block_size % spec.window_block:
            raise ConfigError(
                "the cache block size does not fit the model",
                where="cache.block_size",
                why=f"{spec.block_size} is not a multiple of ratio {ratio} and of window_block {spec.window_block}",
                fix="choose a multiple of both, for example 128",
            )
        caches.main[layer] = backend.kv_alloc(main_layout(text, ratio, spec.block_size), spec.num_blocks)
        caches.index[layer] = backend.kv_alloc(index_layout(text, ratio, spec.block_size), spec.num_blocks)
        if ratio > 1:
            ring = ratio + spec.backtrack
            caches.compressor[layer] = backend.from_host(
                np.zeros((slots, ring, 2, text.head_dim), dtype=np.float32)
            )
    if spec.draft_tokens:
        caches.draft = backend.kv_alloc(window_layout(text, text.dspark_block_size), spec.max_slots)
    if text.engram_layer_ids:
        ring = text.engram_max_ngram_size + spec.backtrack
        caches.history = backend.from_host(np.full((slots, ring), -1, dtype=np.int32))
    return caches

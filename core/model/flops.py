"""Floating-point work of a forward pass, from the shapes of the model.

Counted are the products of matrices: 2 for a multiplication and an addition.  Norms, rotations, softmax, Sinkhorn
steps, gates and quantisation are not; they are small beside these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tandem.model.config import TextConfig

Counts = npt.NDArray[np.int64]


def row_flops(text: TextConfig, layer: int) -> int:
    """Work of one row in one layer that does not depend on its position: every weight matrix that it meets."""
    hidden, heads = text.hidden_size, text.num_attention_heads * text.head_dim
    rank = text.o_groups * text.o_lora_rank
    weights = hidden * text.q_lora_rank + text.q_lora_rank * heads + hidden * text.head_dim
    weights += heads * text.o_lora_rank + rank * hidden
    if text.is_index_source(layer):
        weights += text.q_lora_rank * text.index_n_heads * text.index_head_dim + hidden * text.index_n_heads
    experts = text.num_experts_per_tok + text.n_shared_experts
    weights += hidden * text.n_routed_experts + experts * 3 * hidden * text.moe_intermediate_size
    weights += _mix_weights(text)  # entering the MoE; that of the attention is in `entry_flops`
    return 2 * weights


def entry_flops(text: TextConfig, layer: int) -> int:
    """Work of one row up to and with its compressed keys: mixes, Engram, compressor.  Bounded replay spares none."""
    weights = _mix_weights(text)
    if text.is_kv_source(layer):
        gated = 2 if text.ratio(layer) > 1 else 1
        weights += gated * text.hidden_size * text.head_dim + text.head_dim * text.index_head_dim
    if text.engram_layer_index(layer) is not None:
        looked_up = (text.engram_max_ngram_size - 1) * text.engram_n_heads * text.engram_head_dim
        weights += looked_up * (text.hc_mult + 1) * text.hidden_size
    return 2 * weights


def key_flops(text: TextConfig, layer: int, positions: Counts, first: int) -> int:
    """Work of rows int64 [T] at their keys: attention over window and selected entries, and scores of entries.

    Args:
        first: lowest position whose window key is seen.
    """
    keys = np.minimum(text.sliding_window, positions + 1 - first)
    ratio, scored = text.ratio(layer), np.zeros_like(positions)
    if ratio:
        entries = (positions + 1) // ratio
        keys = keys + np.minimum(text.index_topk, entries)
        if text.is_index_source(layer):
            pool = text.candidate_topk_blocks * text.candidate_block_size
            candidate = text.candidate_source_layer_id
            scored = np.minimum(pool, entries) if candidate is not None and layer > candidate else entries
    attention = 4 * text.num_attention_heads * text.head_dim * int(np.sum(keys))
    return attention + 2 * text.index_n_heads * text.index_head_dim * int(np.sum(scored))


@dataclass(frozen=True, slots=True)
class PromptFlops:
    """Work of one prompt: layers before `TextConfig.n_prefill_layer`, layers from there on, the head for one row."""

    encoder: int
    decoder: int
    head: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.encoder + self.decoder + self.head


def prompt_flops(text: TextConfig, length: int, keep: int | None = None) -> PromptFlops:
    """Work of computing a prompt and its first logits.

    Args:
        text: the model.
        length: tokens.
        keep: rows that run through the decoder layers (bounded replay); None for all.
    """
    every = np.arange(length, dtype=np.int64)
    first = 0 if keep is None else max(0, length - keep)
    parts = {True: 0, False: 0}
    for layer in range(text.num_hidden_layers):
        decoder = layer >= text.n_prefill_layer
        rows, bound = (every[first:], first) if decoder else (every, 0)
        entering = every if layer <= text.n_prefill_layer else rows
        parts[decoder] += len(entering) * entry_flops(text, layer)
        parts[decoder] += len(rows) * row_flops(text, layer) + key_flops(text, layer, rows, bound)
    return PromptFlops(parts[False], parts[True], 2 * text.hidden_size * text.vocab_size)


def _mix_weights(text: TextConfig) -> int:
    """Weights of one `hc_mix`."""
    streams = text.hc_mult
    return (streams * streams + 2 * streams) * streams * text.hidden_size

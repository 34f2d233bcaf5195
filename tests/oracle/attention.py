"""Attention: window keys, compressed keys, selection, sinks, grouped low-rank output."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .arith import Arith
from .choices import Choices, Margins, as_mask, select
from .indexer import candidate_pool, index_scores, visible
from .quant import Weights, fp8_values, index_values, main_kv_values
from .rope import plain_frequencies, rotate, yarn_frequencies
from .settings import Settings


@dataclass
class Shared:
    """What layers hand on to later layers within one forward, by the layer that made it."""

    given: Choices
    made: Choices = field(default_factory=Choices)
    margins: Margins = field(default_factory=Margins)
    latents: dict[int, Tensor] = field(default_factory=dict)
    keys: dict[int, Tensor] = field(default_factory=dict)
    index_keys: dict[int, Tensor] = field(default_factory=dict)
    scores: dict[int, Tensor] = field(default_factory=dict)
    selected: dict[int, Tensor] = field(default_factory=dict)
    pool: Tensor | None = None


def pool_groups(arith: Arith, value: Tensor, score: Tensor, ratio: int) -> Tensor:
    """Per-channel softmax average over each full group of `ratio` tokens: [T, D] -> bf16 [T // ratio, D]."""
    groups, width = value.shape[0] // ratio, value.shape[1]
    value = value[: groups * ratio].view(groups, ratio, width)
    share = torch.softmax(score[: groups * ratio].view(groups, ratio, width), dim=1)
    total = share[:, 0] * value[:, 0]
    for t in range(1, ratio):
        total = total + share[:, t] * value[:, t]
    return arith.bf16(total)


def attend(arith: Arith, query: Tensor, keys: Tensor, mask: Tensor, sink: Tensor, scale: float) -> Tensor:
    """Softmax attention in which keys are the values.

    query [T, H, D], keys [S, D], mask [T, S] -> bf16 [T, H, D]. sink [H] is a logit that takes part in the
    denominator only.
    """
    logits = arith.matmul(query.transpose(0, 1), keys.transpose(0, 1)) * scale
    logits = logits.masked_fill(~mask, -torch.inf)
    peak = logits.amax(dim=-1, keepdim=True)
    weight = torch.exp(logits - peak)
    denominator = arith.total(weight) + torch.exp(sink[:, None, None] - peak)
    return arith.bf16(arith.matmul(weight, keys) / denominator).transpose(0, 1)


class Attention:
    """The attention sub-layer of every layer."""

    def __init__(self, settings: Settings, weights: Weights, arith: Arith) -> None:
        self._settings, self._weights, self._arith = settings, weights, arith
        self.window_first: dict[int, int] = {}  # layer -> lowest position whose window key is seen
        self._plain = plain_frequencies(settings.rope_theta, settings.rope_dim)
        self._yarn = yarn_frequencies(settings.compress_theta, settings.rope_dim, settings.rope_scaling)

    def frequencies(self, layer: int) -> list[float]:
        return self._yarn if self._settings.ratios[layer] else self._plain

    def _compress(self, layer: int, x: Tensor, shared: Shared) -> None:
        """Make the compressed keys of a KV source and keep the latent for the indexer."""
        arith, weights, ratio = self._arith, self._weights, self._settings.ratios[layer]
        prefix = f"layers.{layer}.attn.compressor"
        value = arith.linear(x, weights.get(f"{prefix}.wkv.weight"))
        if ratio == 1:
            pooled = arith.bf16(value)
        else:
            score = arith.linear(x, weights.get(f"{prefix}.wgate.weight"))
            pooled = pool_groups(arith, value, score, ratio)
        latent = arith.rms_norm(pooled, weights.get(f"{prefix}.norm.weight"), self._settings.norm_eps)
        first = torch.arange(latent.shape[0]) * ratio
        rotated = rotate(arith, latent, first, self.frequencies(layer))
        shared.latents[layer] = latent
        shared.keys[layer] = main_kv_values(arith.wide(rotated))

    def _index_key(self, layer: int, shared: Shared) -> None:
        arith, weights = self._arith, self._weights
        prefix = f"layers.{layer}.attn.indexer"
        latent = shared.latents[self._settings.source_of(self._settings.kv_sources, layer)]
        key = arith.bf16(arith.linear(latent, weights.get(f"{prefix}.wk.weight")))
        key = arith.rms_norm(key, weights.get(f"{prefix}.k_norm.weight"), self._settings.norm_eps)
        first = torch.arange(key.shape[0]) * self._settings.ratios[layer]
        key = rotate(arith, key, first, self.frequencies(layer))
        shared.index_keys[layer] = index_values(arith.wide(key))

    def _index(self, layer: int, x: Tensor, latent_q: Tensor, shared: Shared) -> None:
        """Score the compressed entries, maintain the candidate pool, select the top-k of each query."""
        arith, weights, settings = self._arith, self._weights, self._settings
        prefix = f"layers.{layer}.attn.indexer"
        tokens = x.shape[0]
        query = weights.qlin(latent_q, f"{prefix}.wq_b.weight")
        query = query.view(tokens, settings.index_heads, settings.index_head_dim)
        query = index_values(arith.wide(rotate(arith, query, torch.arange(tokens), self.frequencies(layer))))
        head_weight = arith.bf16(arith.linear(x, weights.get(f"{prefix}.weights_proj.weight")))
        key = shared.index_keys[settings.source_of(settings.index_k_sources, layer)]
        scores = index_scores(arith, query, key, head_weight)
        seen = visible(tokens, key.shape[0], settings.ratios[layer])
        pool = seen
        if layer == settings.candidate_source:
            blocks, gaps, shared.pool = candidate_pool(
                scores,
                seen,
                settings.candidate_block_size,
                settings.candidate_blocks,
                shared.given.blocks,
                layer,
            )
            shared.made.blocks = {layer: blocks}
            shared.margins.blocks = {layer: gaps}
        elif shared.pool is not None and self._draws_from_pool(layer):
            pool = shared.pool
        picked, gaps = select(scores, seen, pool, settings.index_topk, shared.given.indices, layer)
        shared.made.indices = {**shared.made.indices, layer: [sorted(p) for p in picked]}
        shared.margins.indices[layer] = gaps
        shared.scores[layer] = scores.masked_fill(~pool, -torch.inf)
        shared.selected[layer] = as_mask(picked, key.shape[0])

    def _draws_from_pool(self, layer: int) -> bool:
        kv, candidate = self._settings.kv_sources, self._settings.candidate_source
        return self._settings.source_of(kv, layer) == self._settings.source_of(kv, candidate)

    def _output(self, layer: int, o: Tensor) -> Tensor:
        """Inverse rotation, grouped projection to the low rank, projection back to the hidden size."""
        arith, weights, groups = self._arith, self._weights, self._settings.o_groups
        tokens = o.shape[0]
        o = rotate(arith, o, torch.arange(tokens), self.frequencies(layer), inverse=True)
        grouped = fp8_values(arith.wide(o.reshape(tokens, groups, -1))).transpose(0, 1)
        down = weights.get(f"layers.{layer}.attn.wo_a.weight").view(groups, -1, grouped.shape[-1])
        low = arith.bf16(arith.linear(grouped, down)).transpose(0, 1).reshape(tokens, -1)
        return weights.qlin(low, f"layers.{layer}.attn.wo_b.weight")

    def __call__(self, layer: int, x: Tensor, shared: Shared) -> Tensor:
        """x bf16 [T, D], the normed input -> bf16 [T, D]."""
        arith, weights, settings = self._arith, self._weights, self._settings
        prefix, eps, tokens = f"layers.{layer}.attn", settings.norm_eps, x.shape[0]
        positions, frequencies = torch.arange(tokens), self.frequencies(layer)
        latent_q = weights.qlin(x, f"{prefix}.wq_a.weight")
        latent_q = arith.rms_norm(latent_q, weights.get(f"{prefix}.q_norm.weight"), eps)
        query = weights.qlin(latent_q, f"{prefix}.wq_b.weight")
        query = query.view(tokens, settings.n_heads, settings.head_dim)
        query = rotate(arith, query, positions, frequencies)
        own = weights.qlin(x, f"{prefix}.wkv.weight")
        own = arith.rms_norm(own, weights.get(f"{prefix}.kv_norm.weight"), eps)
        keys = fp8_values(arith.wide(rotate(arith, own, positions, frequencies)))
        distance = positions[:, None] - positions[None, :]
        mask = (distance >= 0) & (distance < settings.window) & (positions >= self.window_first.get(layer, 0))
        if settings.ratios[layer]:
            if layer in settings.kv_sources:
                self._compress(layer, x, shared)
            if layer in settings.index_k_sources:
                self._index_key(layer, shared)
            if layer in settings.index_sources:
                self._index(layer, x, latent_q, shared)
            keys = torch.cat((keys, shared.keys[settings.source_of(settings.kv_sources, layer)]))
            chosen = shared.selected[settings.source_of(settings.index_sources, layer)]
            mask = torch.cat((mask, chosen), dim=1)
        sink = weights.get(f"{prefix}.attn_sink")
        return self._output(layer, attend(arith, query, keys, mask, sink, settings.head_dim**-0.5))

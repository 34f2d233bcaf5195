"""Differentiable attention over whole sequences: windows in bands, compressed entries as a masked matrix.

All compressed entries are scored, so that the full attention distribution is at hand: the indexer, which top-k gives
no gradient, learns from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tandem.model.config import TextConfig
from tools.train_nano.fakequant import Precision, round_mxfp4, round_mxfp8, round_nvfp4, straight_through
from tools.train_nano.fuse import fused
from tools.train_nano.primitives import fast_product, product, quantised, rms_norm, rotate, rounded

Tensor = torch.Tensor
NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos and sin [T, rd/2] of the plain and of the scaled frequencies."""

    plain: tuple[Tensor, Tensor]
    scaled: tuple[Tensor, Tensor]


@dataclass(slots=True)
class Segment:
    """What a KV source leaves for the layers after it.

    Args:
        keys: compressed keys [B, E, D], rotated and quantised.
        index_keys: keys of the indexer [B, E, Di].
        visible: bool [T, E].
        scores: index scores of the present index source [B, T, E].
        chosen: bool [B, T, E], the entries attended to; None: all visible.
        pool: bool [B, T, E], the candidate pool; None: no pool.
    """

    keys: Tensor
    index_keys: Tensor
    visible: Tensor
    scores: Tensor | None = None
    chosen: Tensor | None = None
    pool: Tensor | None = None


class AttentionGraph:
    """Attention of one layer over weights by name.

    Args:
        w: weights of the layer, names relative to ``layers.N.attn.``.
        sparse: attend to selected entries only; else to all visible ones.
    """

    def __init__(self, text: TextConfig, layer: int, precision: Precision, sparse: bool) -> None:
        self.text, self.layer, self.precision, self.sparse = text, layer, precision, sparse

    def forward(
        self, x: Tensor, w: Mapping[str, Tensor], rotation: Rotation, segment: Segment | None
    ) -> tuple[Tensor, Segment | None, Tensor | None]:
        """x [B, T, H] normalised -> output [B, T, H], the segment, attention mass over entries [B, T, E]."""
        text, precision = self.text, self.precision
        compressed = text.ratio(self.layer) > 0
        cos, sin = rotation.scaled if compressed else rotation.plain
        xq = quantised(x, precision)
        latent = rounded(rms_norm(product(xq, w["wq_a"], precision), w["q_norm"], text.rms_norm_eps), precision)
        latent_q = quantised(latent, precision)
        q = product(latent_q, w["wq_b"], precision).unflatten(-1, (text.num_attention_heads, text.head_dim))
        q = rounded(rotate(q, cos, sin), precision)
        window = rounded(rms_norm(product(xq, w["wkv"], precision), w["kv_norm"], text.rms_norm_eps), precision)
        window = rounded(rotate(window, cos, sin), precision)
        if precision.activations:
            window = straight_through(window, round_mxfp8)
        if compressed:
            if text.is_kv_source(self.layer):
                segment = self._compress(x, w, rotation)
            if segment is None:
                raise AssertionError("a consumer comes before its source")
            if text.is_index_source(self.layer):
                segment = self._select(x, latent_q, w, rotation, segment)
        output, mass = attend(
            q, window, w["attn_sink"], text.sliding_window, segment if compressed else None, precision.fast
        )
        output = rotate(rounded(output, precision), cos, sin, inverse=True)
        return self._project(rounded(output, precision), w), segment, mass

    def _project(self, output: Tensor, w: Mapping[str, Tensor]) -> Tensor:
        """Grouped low-rank output projection of [B, T, heads, D]."""
        text = self.text
        b, t = output.shape[:2]
        grouped = quantised(output.flatten(-2), self.precision).view(b * t, text.o_groups, -1).transpose(0, 1)
        low = product(grouped, w["wo_a"].view(text.o_groups, text.o_lora_rank, -1), self.precision)
        low = low.transpose(0, 1).reshape(b, t, -1)
        return product(quantised(low, self.precision), w["wo_b"], self.precision)

    def _compress(self, x: Tensor, w: Mapping[str, Tensor], rotation: Rotation) -> Segment:
        text, precision, ratio = self.text, self.precision, self.text.ratio(self.layer)
        length = x.shape[1]
        entries = length // ratio
        value = product(x, w["compressor.wkv"], precision, wide=ratio > 1)
        if ratio > 1:
            gate = product(x, w["compressor.wgate"], precision, wide=True)
            grouped = gate[:, : entries * ratio].unflatten(1, (entries, ratio))
            value = value[:, : entries * ratio].unflatten(1, (entries, ratio))
            value = (torch.softmax(grouped, dim=2) * value).sum(2)
        latent = rounded(rms_norm(value, w["compressor.norm"], text.rms_norm_eps), precision)
        cos, sin = (table[: entries * ratio : ratio] for table in rotation.scaled)
        keys = rounded(rotate(latent, cos, sin), precision)
        index_keys = product(latent.detach(), w["indexer.wk"], precision)
        index_keys = rounded(rms_norm(index_keys, w["indexer.k_norm"], text.rms_norm_eps), precision)
        index_keys = rotate(index_keys, cos, sin)
        if precision.activations:
            keys = straight_through(keys, round_nvfp4)
            index_keys = straight_through(rounded(index_keys, precision), round_mxfp4)
        position, entry = torch.arange(length)[:, None], torch.arange(entries)[None, :]
        return Segment(keys, index_keys, entry < (position + 1) // ratio)

    def _select(
        self, x: Tensor, latent_q: Tensor, w: Mapping[str, Tensor], rotation: Rotation, segment: Segment
    ) -> Segment:
        """Score the entries; the trunk gets no gradient from here."""
        text, precision = self.text, self.precision
        query = product(latent_q.detach(), w["indexer.wq_b"], precision).unflatten(-1, (text.index_n_heads, -1))
        query = rotate(query, *rotation.scaled)
        if precision.activations:
            query = straight_through(rounded(query, precision), round_mxfp4)
        weights = product(x.detach(), w["indexer.weights_proj"], precision)
        dots = matmul(query.flatten(1, 2), segment.index_keys, precision.fast).unflatten(1, query.shape[1:3])
        scores = rounded(index_score(dots, weights), precision).masked_fill(~segment.visible, NEVER)
        pool = segment.pool
        searched = scores if pool is None else scores.masked_fill(~pool, NEVER)
        chosen = top_entries(searched.detach(), text.index_topk) if self.sparse else None
        if self.layer == text.candidate_source_layer_id and self.sparse:
            pool = candidate_pool(scores.detach(), segment.visible, text)
        return Segment(segment.keys, segment.index_keys, segment.visible, scores, chosen, pool)


def top_entries(scores: Tensor, k: int) -> Tensor:
    """Mask of the k best finite scores of each row, ties by lower index; bool like scores."""
    if scores.shape[-1] <= k:
        return scores > NEVER
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :k]
    mask = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True)
    return mask & (scores > NEVER)


def block_scores(scores: Tensor, block: int) -> Tensor:
    """Best score of each block of entries [..., E] -> [..., ceil(E / block)]."""
    padded = torch.nn.functional.pad(scores, (0, -scores.shape[-1] % block), value=NEVER)
    best: Tensor = padded.unflatten(-1, (-1, block)).amax(-1)
    return best


def candidate_pool(scores: Tensor, visible: Tensor, text: TextConfig) -> Tensor:
    """Mask of the entries in the best blocks; the last visible block always belongs to them."""
    block = text.candidate_block_size
    best = block_scores(scores, block)
    last = (visible.sum(-1, keepdim=True) - 1).clamp_min(0) // block
    forced = torch.arange(best.shape[-1]) == last
    chosen = top_entries(best.masked_fill(forced, float("inf")), text.candidate_topk_blocks)
    return chosen.repeat_interleave(block, -1)[..., : scores.shape[-1]] & visible


@fused
def index_score(dots: Tensor, weights: Tensor) -> Tensor:
    """Sum over heads of weights [B, T, h] * relu(dots [B, T, h, E])."""
    return (dots.relu() * weights.unsqueeze(-1)).sum(2)


def attend(
    q: Tensor, window: Tensor, sink: Tensor, width: int, segment: Segment | None, fast: bool
) -> tuple[Tensor, Tensor | None]:
    """Attention of q [B, T, heads, D] over its window [B, T, D] and the segment's entries.

    Returns the output [B, T, heads, D] and, with a segment, the detached distribution over all visible entries,
    averaged over heads [B, T, E]: what full attention would look at.
    """
    b, t, heads, dim = q.shape
    near, allowed = _bands(window, t, width)
    blocks = allowed.shape[0]
    spare = (0, 0, 0, 0, 0, blocks * width - t)
    padded = torch.nn.functional.pad(q, spare).reshape(b, blocks, width * heads, dim)
    local = matmul(padded, near, fast).view(b, blocks * width, heads, 2 * width)[:, :t]
    near_mask = allowed.flatten(0, 1)[:t]
    if segment is None:
        weights, mass = _window_weights(local, near_mask, sink, dim**-0.5), None
    else:
        far = matmul(q.reshape(b, t * heads, dim), segment.keys, fast).view(b, t, heads, -1)
        mass = _mass(far.detach(), segment.visible, dim**-0.5)
        chosen = segment.visible if segment.chosen is None else segment.chosen
        weights = _weights(local, near_mask, far, chosen, sink, dim**-0.5)
    nearby = torch.nn.functional.pad(weights[..., : 2 * width], spare).reshape(b, blocks, width * heads, -1)
    output = matmul(nearby, near.mT, fast).view(b, blocks * width, heads, dim)[:, :t]
    if segment is not None:
        away = weights[..., 2 * width : -1].reshape(b, t * heads, -1)
        output = output + matmul(away, segment.keys.mT, fast).view(b, t, heads, dim)
    return output, mass


def matmul(a: Tensor, b: Tensor, fast: bool) -> Tensor:
    """a @ b.mT, batched."""
    return fast_product(a, b) if fast else a @ b.mT


@fused
def _weights(local: Tensor, near: Tensor, far: Tensor, chosen: Tensor, sink: Tensor, scale: float) -> Tensor:
    """Softmax over window keys, entries and sink; masks [T, 2W] and [T, E] or [B, T, E]."""
    parts = (
        (local * scale).masked_fill(~near.unsqueeze(-2), NEVER),
        (far * scale).masked_fill(~chosen.unsqueeze(-2), NEVER),
        sink.view(1, 1, -1, 1).expand(*local.shape[:-1], 1),
    )
    return torch.softmax(torch.cat(parts, dim=-1), dim=-1)


@fused
def _window_weights(local: Tensor, near: Tensor, sink: Tensor, scale: float) -> Tensor:
    scores = (local * scale).masked_fill(~near.unsqueeze(-2), NEVER)
    parts = (scores, sink.view(1, 1, -1, 1).expand(*local.shape[:-1], 1))
    return torch.softmax(torch.cat(parts, dim=-1), dim=-1)


@fused
def _mass(scores: Tensor, visible: Tensor, scale: float) -> Tensor:
    """Softmax over the entries alone, averaged over heads; zero rows where nothing is visible."""
    hidden = ~visible.unsqueeze(-2)
    weights = torch.softmax((scores * scale).masked_fill(hidden, NEVER), dim=-1)
    return weights.masked_fill(hidden, 0.0).mean(2)


def _bands(window: Tensor, length: int, width: int) -> tuple[Tensor, Tensor]:
    """Keys of each block of `width` queries, with those of the block before: [B, blocks, 2 width, D] and a mask."""
    b, _, dim = window.shape
    blocks = -(-length // width)
    padded = torch.nn.functional.pad(window, (0, 0, width, blocks * width - length))
    halves = padded.view(b, blocks + 1, width, dim)
    near = torch.cat((halves[:, :-1], halves[:, 1:]), dim=2)
    query, key = torch.arange(width)[:, None], torch.arange(2 * width)[None, :] - width
    allowed = (key <= query) & (key > query - width)
    first = allowed & (key >= 0)
    return near, torch.stack([first] + [allowed] * (blocks - 1))

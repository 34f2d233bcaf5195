"""The differentiable form of the draft module: blocks of rows after many anchors at once."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tools.train_nano.attention import NEVER, AttentionGraph, matmul
from tools.train_nano.fakequant import round_mxfp8, straight_through
from tools.train_nano.fuse import fused
from tools.train_nano.graph import NanoGraph
from tools.train_nano.moe import moe
from tools.train_nano.primitives import collapse, product, quantised, rms_norm, rotate, rounded, write_back

Tensor = torch.Tensor
Turn = tuple[Tensor, Tensor]  # cos and sin [T, rd/2] of the rows


class DraftGraph:
    """Draft module over parameters by name, next to a backbone whose embedding and head it shares.

    A block of K = ``dspark_block_size`` rows stands after every anchor: a token that is known, at position a.  Its
    rows have positions a .. a + K - 1 and see the backbone's features at a - W .. a - 1 and one another.  Row i
    proposes the token at a + 1 + i.

    Args:
        graph: gives configuration, precision and the parts that both share.
    """

    def __init__(self, graph: NanoGraph) -> None:
        self.graph, self.text, self.precision = graph, graph.text, graph.precision
        self._last = f"mtp.{self.text.num_nextn_predict_layers - 1}."
        self._attention = [
            BlockAttention(self.text, self.text.num_hidden_layers + stage, self.precision, sparse=False)
            for stage in range(self.text.num_nextn_predict_layers)
        ]

    def context(self, weights: Mapping[str, Tensor], taps: Mapping[int, Tensor]) -> list[Tensor]:
        """Keys of each stage [B, T, D], at their own positions, from the taps [B, T, H] of `NanoGraph.hidden`."""
        text = self.text
        features = torch.cat([taps[layer] for layer in text.dspark_target_layer_ids], dim=-1)
        c = product(quantised(features, self.precision), weights["mtp.0.main_proj"], self.precision)
        c = rounded(rms_norm(c, weights["mtp.0.main_norm"], text.rms_norm_eps), self.precision)
        cq = quantised(c, self.precision)
        turn = self.graph.rotation(c.shape[1]).plain
        return [part.keys(cq, _below(weights, f"mtp.{i}.attn."), turn) for i, part in enumerate(self._attention)]

    def block(
        self, weights: Mapping[str, Tensor], context: list[Tensor], anchors: Tensor, tokens: Tensor
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Hidden of the blocks, before the last norm.

        Args:
            context: of `context`.
            anchors: positions of the anchors, int64 [B, A].
            tokens: ids of the anchors, int64 [B, A].

        Returns:
            hidden [B, A, K, H] and stage -> rows of each expert, int64 [E].
        """
        text, k = self.text, self.text.dspark_block_size
        ids = torch.full((*anchors.shape, k), text.dspark_noise_token_id)
        ids[..., 0] = tokens
        rows = ids.view(1, -1)
        trunk = torch.nn.functional.embedding(rows, weights["embed"]).unsqueeze(-2).expand(-1, -1, text.hc_mult, -1)
        pre = torch.zeros((*rows.shape, text.hc_mult))
        pre[..., 0] = 1.0
        positions = (anchors.unsqueeze(-1) + torch.arange(k)).flatten()
        cos, sin = self.graph.rotation(int(positions.max()) + 1).plain
        turn = (cos[positions], sin[positions])
        near = anchors.unsqueeze(-1) + torch.arange(-text.sliding_window, 0)
        loads: dict[int, Tensor] = {}
        for stage, part in enumerate(self._attention):
            w = _below(weights, f"mtp.{stage}.")
            x, own, post, comb = self.graph.enter(w, "attn", trunk, pre)
            y = part.block(x, _below(w, "attn."), turn, gather_rows(context[stage], near), near >= 0)
            trunk, pre = rounded(write_back(trunk, y, post, comb), self.precision), own
            x, own, post, comb = self.graph.enter(w, "ffn", trunk, pre)
            inner = _below(w, "ffn.")
            y, loads[stage] = moe(x[0], inner, text.dspark_num_experts_per_tok, text, self.precision)
            trunk, pre = rounded(write_back(trunk, y.unsqueeze(0), post, comb), self.precision), own
        return rounded(collapse(trunk, pre), self.precision).view(*ids.shape, -1), loads

    def base_logits(self, weights: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
        """Hidden [..., H] of `block` -> logits [..., V] without the Markov head."""
        normed = rounded(rms_norm(hidden, weights[self._last + "norm"], self.text.rms_norm_eps), self.precision)
        return self.graph.logits(weights, normed)

    def markov(self, weights: Mapping[str, Tensor], previous: Tensor) -> tuple[Tensor, Tensor]:
        """Ids [...] of the tokens before the proposed ones -> their embedding [..., R], added logits [..., V]."""
        embedded = torch.nn.functional.embedding(previous, weights[self._last + "markov_head.embed"])
        return embedded, product(embedded, weights[self._last + "markov_head.head"], self.precision, wide=True)

    def confidence(self, weights: Mapping[str, Tensor], hidden: Tensor, embedded: Tensor) -> Tensor:
        """Logit [...] of the probability that a row's draft is accepted, from `block` and `markov`."""
        both = torch.cat((hidden, embedded), dim=-1)
        return (both @ weights[self._last + "confidence_head.proj"].t()).squeeze(-1)


class BlockAttention(AttentionGraph):
    """Attention of one stage: context keys of many sequences, rows of many blocks."""

    def keys(self, xq: Tensor, w: Mapping[str, Tensor], turn: Turn) -> Tensor:
        """Quantised input [B, T, H] -> keys [B, T, D] as they are cached."""
        precision, eps = self.precision, self.text.rms_norm_eps
        keys = rounded(rms_norm(product(xq, w["wkv"], precision), w["kv_norm"], eps), precision)
        keys = rounded(rotate(keys, *turn), precision)
        return straight_through(keys, round_mxfp8) if precision.activations else keys

    def block(self, x: Tensor, w: Mapping[str, Tensor], turn: Turn, near: Tensor, visible: Tensor) -> Tensor:
        """Rows of all blocks [1, N * K, H], normalised -> output [1, N * K, H].

        Args:
            near: context keys of each block [B, A, W, D] with B * A = N.
            visible: which of them exist, bool [B, A, W].
        """
        text, precision = self.text, self.precision
        heads, dim, k = text.num_attention_heads, text.head_dim, text.dspark_block_size
        xq = quantised(x, precision)
        latent = rounded(rms_norm(product(xq, w["wq_a"], precision), w["q_norm"], text.rms_norm_eps), precision)
        q = product(quantised(latent, precision), w["wq_b"], precision).unflatten(-1, (heads, dim))
        q = rounded(rotate(q, *turn), precision).view(-1, k * heads, dim)
        keys = torch.cat((near.flatten(0, 1), self.keys(xq, w, turn).view(-1, k, dim)), dim=1)
        mask = torch.nn.functional.pad(visible.flatten(0, 1), (0, k), value=True)
        scores = matmul(q, keys, precision.fast).view(-1, k, heads, keys.shape[1])
        weights = _attention_weights(scores, mask, w["attn_sink"], dim**-0.5)
        output = matmul(weights.flatten(1, 2), keys.mT, precision.fast).view(1, -1, heads, dim)
        output = rotate(rounded(output, precision), *turn, inverse=True)
        return self._project(rounded(output, precision), w)


def distribution(logits: Tensor, temperature: float) -> Tensor:
    """Probabilities [..., V] at a temperature; at 0 the first of the largest logits has all."""
    if temperature == 0.0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    return torch.softmax(logits / temperature, dim=-1)


def gather_rows(values: Tensor, index: Tensor) -> Tensor:
    """values [B, T, D] at index [B, ...] -> [B, ..., D]; a negative index reads row 0."""
    b, t = values.shape[:2]
    flat = index.clamp_min(0) + torch.arange(b).view(b, *(1,) * (index.ndim - 1)) * t
    return torch.nn.functional.embedding(flat, values.flatten(0, 1))


@fused
def _attention_weights(scores: Tensor, mask: Tensor, sink: Tensor, scale: float) -> Tensor:
    """Softmax over keys and sink of scores [N, K, heads, S] with mask [N, S]; the sink's share is left out."""
    seen = (scores * scale).masked_fill(~mask[:, None, None], NEVER)
    parts = (seen, sink.view(1, 1, -1, 1).expand(*scores.shape[:-1], 1))
    return torch.softmax(torch.cat(parts, dim=-1), dim=-1)[..., :-1]


def _below(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Weights below a prefix, by the rest of their names."""
    return {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}

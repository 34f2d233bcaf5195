"""The differentiable form of the model: the same graph as `tandem.model`, over whole sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tandem.model.config import ModelConfig
from tandem.model.rope import frequencies, rope_table, yarn_frequencies
from tools.train_nano.attention import AttentionGraph, Rotation, Segment
from tools.train_nano.engram import EngramRows, engram
from tools.train_nano.fakequant import FULL, Precision, straight_through
from tools.train_nano.moe import moe
from tools.train_nano.parameters import parameter_shapes, stored_value
from tools.train_nano.primitives import collapse, mixing, product, rms_norm, rounded, write_back

Tensor = torch.Tensor


@dataclass(slots=True)
class Observations:
    """What a forward pass leaves for losses and reports.

    Args:
        loads: layer -> tokens of each expert, int64 [E].
        scores: index source -> its index scores [B, T, E].
        masses: layer -> full attention distribution over entries [B, T, E].
        chosen: layer -> entries attended to, bool [B, T, E].
        pools: index source -> its candidate pool, bool [B, T, E].
        taps: layer -> mean of the streams at its entry [B, T, H].
    """

    loads: dict[int, Tensor] = field(default_factory=dict)
    scores: dict[int, Tensor] = field(default_factory=dict)
    masses: dict[int, Tensor] = field(default_factory=dict)
    chosen: dict[int, Tensor] = field(default_factory=dict)
    pools: dict[int, Tensor] = field(default_factory=dict)
    taps: dict[int, Tensor] = field(default_factory=dict)


class NanoGraph:
    """Backbone over parameters by name.

    Args:
        config: the model.
        tokenizer_json: for the Engram vocabulary.
        precision: what is quantised.
        sparse: attend to selected entries only; else to every visible one.
        dropout: share of sub-layer outputs and looked-up memory that is dropped.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokenizer_json: Path,
        precision: Precision = FULL,
        sparse: bool = True,
        dropout: float = 0.0,
    ) -> None:
        self.config, self.text = config, config.text
        self.precision, self.sparse, self.dropout = precision, sparse, dropout
        self.dtypes = {name: dtype for name, (_, dtype) in parameter_shapes(config).items()}
        self.engram_rows = EngramRows(config.text, tokenizer_json) if config.text.engram_layer_ids else None

    def stored(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters as the graph reads them: quantised straight through if the precision says so."""
        if not self.precision.weights:
            return dict(parameters)
        return {
            name: straight_through(value, lambda v, name=name: stored_value(name, v, self.dtypes[name]))  # type: ignore[misc]
            for name, value in parameters.items()
        }

    def rotation(self, length: int) -> Rotation:
        """Rotary tables of positions 0 .. length - 1."""
        text, half = self.text, self.text.qk_rope_head_dim // 2
        plain = torch.from_numpy(rope_table(frequencies(text.qk_rope_head_dim, text.rope_theta), length))
        scaled = torch.from_numpy(rope_table(yarn_frequencies(text), length))
        return Rotation((plain[:, :half], plain[:, half:]), (scaled[:, :half], scaled[:, half:]))

    def hidden(self, weights: Mapping[str, Tensor], tokens: Tensor) -> tuple[Tensor, Observations]:
        """Tokens int64 [B, T] -> normalised final hidden [B, T, H] and observations; `weights` from `stored`."""
        text = self.text
        seen = Observations()
        embedded = torch.nn.functional.embedding(tokens, weights["embed"])
        trunk = embedded.unsqueeze(-2).expand(-1, -1, text.hc_mult, -1)
        pre = torch.zeros((*tokens.shape, text.hc_mult))
        pre[..., 0] = 1.0
        rows = self.engram_rows.look_up(tokens) if self.engram_rows is not None else {}
        rotation, segment = self.rotation(tokens.shape[1]), None
        for layer in range(text.num_hidden_layers):
            w = _under(weights, f"layers.{layer}.")
            if layer in rows:
                memory = _under(w, "engram.")
                trunk = engram(trunk, rows[layer], memory, text.rms_norm_eps, self.precision, self.dropout)
            if layer in text.dspark_target_layer_ids:
                seen.taps[layer] = rounded(trunk.mean(-2), self.precision)
            trunk, pre, segment = self._attention(layer, w, trunk, pre, rotation, segment, seen)
            trunk, pre = self._experts(layer, w, trunk, pre, seen)
        final = rounded(collapse(trunk, pre), self.precision)
        return rounded(rms_norm(final, weights["norm"], text.rms_norm_eps), self.precision), seen

    def _drop(self, y: Tensor) -> Tensor:
        return torch.nn.functional.dropout(y, self.dropout) if self.dropout else y

    def logits(self, weights: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
        """Normalised hidden [..., H] -> logits [..., V]."""
        return product(hidden, weights["head"], self.precision, wide=True)

    def enter(
        self, w: Mapping[str, Tensor], name: str, trunk: Tensor, pre: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Input of a sub-layer ("attn" or "ffn") and its pre, post, comb."""
        text = self.text
        settings = (text.rms_norm_eps, text.hc_eps, text.hc_sinkhorn_iters)
        mixes = mixing(trunk, w[f"hc_{name}_fn"], w[f"hc_{name}_base"], w[f"hc_{name}_scale"], settings)
        x = rounded(collapse(trunk, pre), self.precision)
        x = rounded(rms_norm(x, w[f"{name}_norm"], text.rms_norm_eps), self.precision)
        return x, *mixes

    def _attention(
        self, layer: int, w: Mapping[str, Tensor], trunk: Tensor, pre: Tensor, rotation: Rotation,
        segment: Segment | None, seen: Observations,
    ) -> tuple[Tensor, Tensor, Segment | None]:  # fmt: skip
        x, own, post, comb = self.enter(w, "attn", trunk, pre)
        part = AttentionGraph(self.text, layer, self.precision, self.sparse)
        y, segment, mass = part.forward(x, _under(w, "attn."), rotation, segment)
        if segment is not None and segment.scores is not None:
            if self.text.is_index_source(layer):
                seen.scores[layer] = segment.scores
            if mass is not None:
                seen.masses[layer] = mass
            if segment.chosen is not None:
                seen.chosen[layer] = segment.chosen
            if segment.pool is not None and self.text.is_index_source(layer):
                seen.pools[layer] = segment.pool
        return rounded(write_back(trunk, self._drop(y), post, comb), self.precision), own, segment

    def _experts(
        self, layer: int, w: Mapping[str, Tensor], trunk: Tensor, pre: Tensor, seen: Observations
    ) -> tuple[Tensor, Tensor]:
        x, own, post, comb = self.enter(w, "ffn", trunk, pre)
        inner = _under(w, "ffn.")
        text = self.text
        y, load = moe(x.flatten(0, 1), inner, text.num_experts_per_tok, text, self.precision)
        seen.loads[layer] = load
        return rounded(write_back(trunk, self._drop(y.view(x.shape)), post, comb), self.precision), own


def _under(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Weights below a prefix, by the rest of their names."""
    return {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}


def backbone_names(config: ModelConfig) -> list[str]:
    """Names of the parameters that are not part of the draft module."""
    return [name for name in parameter_shapes(config) if not name.startswith("mtp.")]


def token_losses(graph: NanoGraph, weights: Mapping[str, Tensor], hidden: Tensor, targets: Tensor) -> Tensor:
    """Negative log likelihoods [B, T] in nats."""
    logits = graph.logits(weights, hidden)
    flat = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return flat.view(targets.shape)



"""Differentiable Engram: hashed n-grams read table rows, which are gated into the streams."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from tandem.model.config import TextConfig
from tandem.model.engram_tables import engram_multipliers, engram_offsets, engram_primes, engram_vocabulary_map
from tandem.ops.engram_hash import engram_hash
from tools.train_nano.fakequant import Precision
from tools.train_nano.fuse import fused
from tools.train_nano.primitives import product, rounded

Tensor = torch.Tensor


class EngramRows:
    """Table rows of token sequences, for every Engram layer."""

    def __init__(self, text: TextConfig, tokenizer_json: Path) -> None:
        self.text = text
        self.vocabulary = torch.from_numpy(engram_vocabulary_map(text, tokenizer_json)).long()
        self.pad = int(self.vocabulary[text.engram_pad_token_id])
        self.primes = torch.tensor(engram_primes(text))
        self.offsets = torch.tensor(engram_offsets(text))

    def look_up(self, tokens: Tensor) -> dict[int, Tensor]:
        """Tokens [B, T] from the start of a request -> layer: rows int64 [B, T, n-grams * heads]."""
        classes = self.vocabulary[tokens]
        columns = []
        for back in range(self.text.engram_max_ngram_size):
            columns.append(torch.nn.functional.pad(classes, (back, 0), value=self.pad)[:, : tokens.shape[1]])
        context = torch.stack(columns, dim=-1)
        return {
            layer: engram_hash(
                context.flatten(0, 1),
                torch.from_numpy(engram_multipliers(layer, self.text.engram_compressed_vocab_size, context.shape[-1])),
                self.primes[order],
                self.offsets[order],
            ).unflatten(0, tokens.shape)
            for order, layer in enumerate(self.text.engram_layer_ids)
        }


def engram(
    trunk: Tensor, rows: Tensor, w: Mapping[str, Tensor], eps: float, precision: Precision, dropout: float = 0.0
) -> Tensor:
    """Add the memory to the trunk [B, T, m, H]; `w` has names relative to ``layers.N.engram.``."""
    looked_up = torch.nn.functional.embedding(rows, w["embed"]).flatten(-2)
    if dropout:
        looked_up = torch.nn.functional.dropout(looked_up, dropout)
    kv = product(looked_up, w["wkv"], precision).unflatten(-1, (trunk.shape[-2] + 1, trunk.shape[-1]))
    return rounded(_gate(trunk, kv, w["q_weight"] * w["k_weight"], eps), precision)


@fused
def _gate(trunk: Tensor, kv: Tensor, qk: Tensor, eps: float) -> Tensor:
    m, width = trunk.shape[-2:]
    key, value = kv[..., :m, :], kv[..., m:, :]
    dot = (trunk * qk * key).sum(-1)
    norms = torch.rsqrt(trunk.square().mean(-1) + eps) * torch.rsqrt(key.square().mean(-1) + eps)
    s = dot * norms * width**-0.5
    gate = torch.sigmoid(torch.copysign(s.abs().clamp_min(1e-6).sqrt(), s))
    return trunk + gate.unsqueeze(-1) * value

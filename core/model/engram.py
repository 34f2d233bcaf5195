"""Engram conditional memory: n-gram hashes look up rows that are gated into the residual streams."""

from __future__ import annotations

import numpy as np
import torch

from tandem.contract.plan import Plan, weight_attrs
from tandem.contract.types import QTensor, Rows
from tandem.model.caches import ModelCaches
from tandem.model.config import TextConfig
from tandem.model.engram_tables import engram_multipliers, engram_offsets, engram_primes
from tandem.model.weights import WeightLoader

Tensor = torch.Tensor


class EngramContext:
    """The n-gram context of each row, computed once a step for all Engram layers.

    Args:
        vocabulary: int32 [V], token id -> compressed id.
    """

    def __init__(
        self, plan: Plan, text: TextConfig, vocabulary: np.typing.NDArray[np.int32], caches: ModelCaches
    ) -> None:
        self.length = text.engram_max_ngram_size
        self.pad = int(vocabulary[text.engram_pad_token_id])
        self.vocabulary = plan.backend.from_host(vocabulary)
        self.history = caches.history
        self._context = plan.bind("engram_context", "engram", n=self.length)

    def forward(self, rows: Rows) -> Tensor:
        """int32 [T, n]; also writes the history."""
        context: Tensor = self._context(rows, self.vocabulary, self.history, self.pad, self.length)
        return context


class Engram:
    """One layer's table, projection and gate.

    `look_up` depends on tokens only, so the model runs it for all layers before the first one; a table that lives
    off the device can be read there.
    """

    def __init__(self, plan: Plan, load: WeightLoader, text: TextConfig, layer: int) -> None:
        site = f"layers.{layer}.engram"
        order = text.engram_layer_ids.index(layer)
        backend = plan.backend
        self.eps = text.rms_norm_eps
        self.table, self.first_row = load.engram(f"{site}.embed", layer, text.engram_num_embeddings[order])
        self.wkv = load.linear(f"{site}.wkv")
        self.qk = backend.from_host(
            (load.host(f"{site}.q_weight") * load.host(f"{site}.k_weight")).astype(np.float32)
        )
        multipliers = engram_multipliers(layer, text.engram_compressed_vocab_size, text.engram_max_ngram_size)
        self.multipliers = backend.from_host(multipliers)
        self.primes = backend.from_host(np.array(engram_primes(text)[order], dtype=np.int64))
        self.offsets = backend.from_host(np.array(engram_offsets(text)[order], dtype=np.int64))
        heads = text.engram_n_heads
        self._hash = plan.bind("engram_hash", site, n=text.engram_max_ngram_size, heads=heads)
        self._gather = plan.bind("engram_gather", site, dim=text.engram_head_dim)
        self._linear = plan.bind("linear", f"{site}.wkv", x="mxfp8", out="bf16", **weight_attrs(self.wkv))
        self._gate = plan.bind("engram_gate", site, m=text.hc_mult)

    def look_up(self, context: Tensor) -> QTensor:
        """Context int32 [T, n] -> the rows it hashes to, mxfp8 [T, rows * dim]."""
        rows = self._hash(context, self.multipliers, self.primes, self.offsets)
        looked_up: QTensor = self._gather(rows, self.table, self.first_row)
        return looked_up

    def forward(self, trunk: Tensor, looked_up: QTensor, roles: Tensor) -> Tensor:
        """trunk bf16 [T, m, H] -> updated trunk."""
        kv = self._linear(looked_up, self.wkv, torch.bfloat16)
        updated: Tensor = self._gate(trunk, kv, self.qk, self.eps, roles)
        return updated

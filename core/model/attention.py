"""Attention of one layer: query, window keys, optional further keys, indexer, output projection."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tandem.contract.plan import Plan, cache_attrs, weight_attrs
from tandem.contract.types import KVCache, QFormat, QTensor
from tandem.model.caches import ModelCaches
from tandem.model.compressor import Compressor
from tandem.model.config import TextConfig
from tandem.model.indexer import Indexer
from tandem.model.step import Selection, StepContext
from tandem.model.weights import WeightLoader

Tensor = torch.Tensor
BF16 = torch.bfloat16


class AttentionParts:
    """Projections and keys that every kind of attention has: one key-value head shared by all query heads.

    Args:
        site: prefix of the layer's tensors, and its name in plans.
        window: the layer's window cache.
        main: cache of further keys, read by the slots given to `attend`.
    """

    def __init__(
        self, plan: Plan, load: WeightLoader, text: TextConfig, site: str, window: KVCache, main: KVCache | None
    ) -> None:
        self.eps = text.rms_norm_eps
        self.heads, self.dim = text.num_attention_heads, text.head_dim
        self.scale = text.head_dim**-0.5
        self.wq_a, self.wq_b = load.linear(f"{site}.wq_a"), load.linear(f"{site}.wq_b")
        self.wkv, self.wo_b = load.linear(f"{site}.wkv"), load.linear(f"{site}.wo_b")
        self.wo_a = load.grouped(f"{site}.wo_a", text.o_groups)
        self.q_norm, self.kv_norm = load.vector(f"{site}.q_norm.weight"), load.vector(f"{site}.kv_norm.weight")
        self.sink = load.vector(f"{site}.attn_sink")
        self.window, self.main = window, main
        rope = text.qk_rope_head_dim
        self._linear = {
            name: plan.bind("linear", f"{site}.{name}", x="mxfp8", out="bf16", **weight_attrs(w))
            for name, w in (("wq_a", self.wq_a), ("wq_b", self.wq_b), ("wkv", self.wkv), ("wo_b", self.wo_b))
        }
        self._norm = plan.bind("rms_norm", f"{site}.q_norm", quant=True)
        self._write = plan.bind("kv_write", f"{site}.window", rope_dim=rope, **cache_attrs(self.window))
        self._attend = plan.bind(
            "attn_block",
            site,
            heads=self.heads,
            dim=self.dim,
            rope_dim=rope,
            main=self.main is not None,
            window=text.sliding_window,
            layout=self.window.memory_layout,
            main_layout=(self.main or self.window).memory_layout,
        )
        self._group = plan.bind("group_linear", f"{site}.wo_a", x="mxfp8", **weight_attrs(self.wo_a))
        self._quantize = plan.bind("quantize", f"{site}.wo_a", fmt="mxfp8")

    def query(self, xq: QTensor) -> tuple[Tensor, QTensor]:
        """xq mxfp8 [T, H] -> queries before rotation bf16 [T, heads, D], and the quantised latent they are made of."""
        latent, latent_q = self._norm(self._linear["wq_a"](xq, self.wq_a, BF16), self.q_norm, self.eps, True)
        q = self._linear["wq_b"](latent_q, self.wq_b, BF16).view(-1, self.heads, self.dim)
        return q, latent_q

    def write_keys(self, xq: QTensor, cos_sin: Tensor, cache: KVCache, slots: Tensor) -> None:
        """Write the keys of rows xq mxfp8 [T, H] to slots int32 [T] of a cache of the window's layout."""
        kv = self._linear["wkv"](xq, self.wkv, BF16)
        self._write(kv, self.kv_norm, self.eps, cos_sin, cache, slots)

    def attend(self, q: Tensor, cos_sin: Tensor, window: Tensor, main: Tensor | None, hint: str) -> Tensor:
        """Attention over slots of the window and main caches (int32 [T, W], [T, K]) -> projected output bf16 [T, H]."""
        linear = self._linear
        output = self._attend(q, cos_sin, self.window, window, self.main, main, self.sink, self.scale, hint)
        low_rank = self._quantize(self._group(output, self.wo_a), QFormat.MXFP8)
        result: Tensor = linear["wo_b"](low_rank, self.wo_b, BF16)
        return result


class Attention(AttentionParts):
    """Sparse attention of a backbone layer.

    Keys of the step are written before anything is read, so rows of one chunk see each other and prefill and
    decode take the same path.
    """

    def __init__(self, plan: Plan, load: WeightLoader, text: TextConfig, layer: int, caches: ModelCaches) -> None:
        source = text.kv_source(layer)
        main = None if source is None else caches.main[source]
        super().__init__(plan, load, text, f"layers.{layer}.attn", caches.window[layer], main)
        self.compressor = Compressor(plan, load, text, layer, caches) if text.is_kv_source(layer) else None
        self.indexer = Indexer(plan, load, text, layer, caches) if text.is_index_source(layer) else None

    @property
    def store(self) -> Callable[[Tensor, StepContext], None] | None:
        """Writes the compressed keys of a KV source layer from x bf16 [T, H]; called before `forward`."""
        return None if self.compressor is None else self.compressor.forward

    def forward(self, x: Tensor, xq: QTensor, context: StepContext, selection: Selection) -> Tensor:
        """x bf16 [T, H] normalised input, xq its quantised copy -> bf16 [T, H]."""
        compressed = self.main is not None
        cos_sin = context.scaled if compressed else context.plain
        q, latent_q = self.query(xq)
        self.write_keys(xq, cos_sin, self.window, context.window_write)
        if self.indexer is not None:
            self.indexer.forward(x, latent_q, context, selection)
        slots = selection.slots if compressed else None
        return self.attend(q, cos_sin, context.window_read, slots, context.step.hint)

"""The compressor of a KV source layer: pools tokens into latents, which become main keys and index keys."""

from __future__ import annotations

import torch

from tandem.contract.plan import Plan, cache_attrs, weight_attrs
from tandem.model.caches import ModelCaches
from tandem.model.config import TextConfig
from tandem.model.step import StepContext
from tandem.model.weights import WeightLoader

Tensor = torch.Tensor


class Compressor:
    """Writes the layer's main cache and index cache.

    A row completes an entry where (position + 1) % ratio == 0; other rows compute and are not stored, so shapes
    stay fixed.  The entry carries the position of its group's first token.
    """

    def __init__(self, plan: Plan, load: WeightLoader, text: TextConfig, layer: int, caches: ModelCaches) -> None:
        site = f"layers.{layer}.attn.compressor"
        index_site = f"layers.{layer}.attn.indexer"
        self.ratio, self.eps = text.ratio(layer), text.rms_norm_eps
        self.main, self.index = caches.main[layer], caches.index[layer]
        self.state = caches.compressor.get(layer)
        self.wkv, self.norm = load.linear(f"{site}.wkv"), load.vector(f"{site}.norm.weight")
        self.wgate = load.linear(f"{site}.wgate") if self.ratio > 1 else None
        self.wk, self.k_norm = load.linear(f"{index_site}.wk"), load.vector(f"{index_site}.k_norm.weight")
        self.product_dtype = torch.bfloat16 if self.ratio == 1 else torch.float32
        out = "bf16" if self.ratio == 1 else "f32"
        rope = text.qk_rope_head_dim
        self._linear = plan.bind("linear", f"{site}.wkv", x="bf16", out=out, **weight_attrs(self.wkv))
        self._key = plan.bind("linear", f"{index_site}.wk", x="bf16", out="bf16", **weight_attrs(self.wk))
        self._write_main = plan.bind("kv_write", site, rope_dim=rope, **cache_attrs(self.main))
        self._write_index = plan.bind("kv_write", index_site, rope_dim=rope, **cache_attrs(self.index))
        if self.ratio > 1:
            self._pool = plan.bind("compress_update", site, ratio=self.ratio, dim=text.head_dim)

    def forward(self, x: Tensor, context: StepContext) -> None:
        """x bf16 [T, H], the layer's normalised input."""
        here = context.ratios[self.ratio]
        latent = self._linear(x, self.wkv, self.product_dtype)
        if self.wgate is not None:
            gate = self._linear(x, self.wgate, self.product_dtype)
            latent = self._pool(latent, gate, self.state, context.step.rows, self.ratio)
        normed = self._write_main(latent, self.norm, self.eps, here.cos_sin, self.main, here.write_slots)
        key = self._key(normed, self.wk, torch.bfloat16)
        self._write_index(key, self.k_norm, self.eps, here.cos_sin, self.index, here.write_slots)

"""The lightning indexer of an index source layer: scores compressed entries and chooses the top k."""

from __future__ import annotations

import torch

from tandem.contract.plan import Plan, cache_attrs, weight_attrs
from tandem.contract.types import QTensor
from tandem.errors import ConfigError
from tandem.model.caches import ModelCaches
from tandem.model.config import TextConfig
from tandem.model.step import RatioContext, Selection, StepContext
from tandem.model.weights import WeightLoader

Tensor = torch.Tensor


class Indexer:
    """Fills `Selection.slots`; the candidate source also fills `Selection.pool`, later sources search only there."""

    def __init__(self, plan: Plan, load: WeightLoader, text: TextConfig, layer: int, caches: ModelCaches) -> None:
        site = f"layers.{layer}.attn.indexer"
        source, candidate = text.index_k_source(layer), text.candidate_source_layer_id
        if source is None:
            raise ConfigError(
                f"layer {layer} selects entries but has none",
                where="text_config.index_source_layer_ids",
                why="its compress ratio is 0",
                fix="remove the layer from the list",
            )
        self.ratio, self.cache = text.ratio(layer), caches.index[source]
        self.entries_per_block = caches.main[source].layout.block_entries
        self.heads, self.topk = text.index_n_heads, text.index_topk
        self.pool_blocks, self.pool_block = text.candidate_topk_blocks, text.candidate_block_size
        self.makes_pool = layer == candidate
        self.uses_pool = candidate is not None and layer > candidate
        self.wq_b, self.weights_proj = load.linear(f"{site}.wq_b"), load.linear(f"{site}.weights_proj")
        rope, dim = text.qk_rope_head_dim, text.index_head_dim
        self._query = plan.bind("linear", f"{site}.wq_b", x="mxfp8", out="bf16", **weight_attrs(self.wq_b))
        self._weights = plan.bind(
            "linear", f"{site}.weights_proj", x="bf16", out="bf16", **weight_attrs(self.weights_proj)
        )
        self._rotate = plan.bind("index_query", site, heads=self.heads, dim=dim, rope_dim=rope)
        scores = "index_scores_at" if self.uses_pool else "index_scores"
        self._scores = plan.bind(scores, site, heads=self.heads, **cache_attrs(self.cache))
        self._topk = plan.bind("topk_index", site, k=self.topk)
        self._map = plan.bind("aux.map_entries", site)
        self._take = plan.bind("aux.take", site)
        if self.makes_pool:
            self._block_max = plan.bind("block_max", site, block=self.pool_block)
            self._expand = plan.bind("pool_expand", site, block=self.pool_block)

    def forward(self, x: Tensor, latent_q: QTensor, context: StepContext, selection: Selection) -> None:
        """x bf16 [T, H] normalised input, latent_q mxfp8 [T, q_lora] the normalised query latent."""
        step, here = context.step, context.ratios[self.ratio]
        query = self._rotate(self._query(latent_q, self.wq_b, torch.bfloat16), self.heads, context.scaled)
        weights = self._weights(x, self.weights_proj, torch.bfloat16)
        table, slot = step.block_table, step.rows.slot
        if self.uses_pool:
            scores = self._scores(query, weights, self.cache, table, slot, selection.pool)
            entries = self._take(selection.pool, self._topk(scores, self.topk))
        else:
            scores = self._scores(query, weights, self.cache, table, slot, here.lens, here.width)
            entries = self._topk(scores, self.topk)
            if self.makes_pool:
                selection.pool = self._pool(scores, here)
        selection.slots = self._map(entries, slot, table, self.entries_per_block)

    def _pool(self, scores: Tensor, here: RatioContext) -> Tensor:
        count = min(self.pool_blocks, -(-here.width // self.pool_block))
        blocks = self._topk(self._block_max(scores, here.lens, self.pool_block), count)
        pool: Tensor = self._expand(blocks, self.pool_block, here.lens)
        return pool

"""DeepSeek-V4.1: embedding, Engram, attention and MoE inside shifted hyper-connections, head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from tandem.contract.plan import Plan, weight_attrs
from tandem.contract.types import HcWeights, QTensor, Rows
from tandem.errors import ConfigError
from tandem.model.attention import Attention
from tandem.model.caches import ModelCaches
from tandem.model.config import ModelConfig
from tandem.model.dspark import Drafter
from tandem.model.engram import Engram, EngramContext
from tandem.model.moe import MoE
from tandem.model.narrowing import Entering, Narrowing
from tandem.model.rope import frequencies, rope_table, yarn_frequencies
from tandem.model.step import RatioContext, Selection, StepContext, StepInput
from tandem.model.weights import WeightLoader

Tensor = torch.Tensor
SubLayer = Callable[[Tensor, QTensor, StepContext, Selection], Tensor]


class SubLayerEntry(NamedTuple):
    """One sub-layer with what the residual streams need to enter it."""

    hyper: HcWeights
    norm: Tensor
    run: SubLayer
    engram: int | None = None  # Engram layer id applied to the trunk before entering
    store: Callable[[Tensor, StepContext], None] | None = None  # writes compressed keys of all rows before run
    boundary: bool = False  # decoder layers begin here
    tap: bool = False  # the draft module reads the trunk at its entry


class DeepseekV41:
    """The text model on one backend.

    Args:
        plan: binds every op used here and in the modules.
        load: reads and packs weights.
        config: model configuration.
        vocabulary: int32 [V], compressed token ids for Engram.
        caches: caches and state arrays.
        max_rows: most rows of a step.
        max_positions: length of the rotary tables.
        progress: called with a module's name as it is loaded.
    """

    def __init__(
        self,
        plan: Plan,
        load: WeightLoader,
        config: ModelConfig,
        vocabulary: np.typing.NDArray[np.int32],
        caches: ModelCaches,
        max_rows: int,
        max_positions: int,
        progress: Callable[[str], None],
    ) -> None:
        text = self.text = config.text
        self.caches, self.eps = caches, text.rms_norm_eps
        backend = plan.backend
        # The largest tensors first: while one is packed its file pages are resident beside all that is packed already.
        progress("embed")
        self.embedding = load.embedding("embed.weight")
        progress("head")
        self.norm, self.head = load.vector("norm.weight"), load.head("head")
        self.engrams = {layer: Engram(plan, load, text, layer) for layer in text.engram_layer_ids}
        self.engram_context = EngramContext(plan, text, vocabulary, caches) if self.engrams else None
        self.entries = [e for layer in range(text.num_hidden_layers) for e in self._layer(plan, load, layer, progress)]
        plain = frequencies(text.qk_rope_head_dim, text.rope_theta)
        # A draft block stands behind the longest sequence.
        block = 0 if caches.draft is None else text.dspark_block_size
        self.plain_table = backend.from_host(rope_table(plain, max_positions + block))
        self.scaled_table = backend.from_host(rope_table(yarn_frequencies(text), max_positions))
        one_hot = np.zeros((max_rows, text.hc_mult), dtype=np.float32)
        one_hot[:, 0] = 1.0
        self.first_pre = backend.from_host(one_hot)
        self.ratios = sorted({r for r in text.compress_ratios[: text.num_hidden_layers] if r > 0})
        self.narrowing = Narrowing(plan, text, caches)
        self._bind(plan)
        self.drafts, self.drafter = caches.spec.draft_tokens, None
        if caches.draft is not None:
            shared = self.embedding, self.head, self.plain_table
            self._mean = plan.bind("hc_mean", "mtp.taps", m=text.hc_mult)
            self.drafter = Drafter(plan, load, text, caches, caches.draft, *shared, max_rows, progress)
        self.packed_bytes = load.packed_bytes

    def _layer(
        self, plan: Plan, load: WeightLoader, layer: int, progress: Callable[[str], None]
    ) -> list[SubLayerEntry]:
        text, prefix = self.text, f"layers.{layer}"
        progress(prefix)
        attention = Attention(plan, load, text, layer, self.caches)
        moe = MoE(plan, load, text, f"{prefix}.ffn", text.n_routed_experts, text.num_experts_per_tok)
        taps = text.dspark_target_layer_ids if self.caches.draft is not None else ()

        def run_moe(x: Tensor, xq: QTensor, context: StepContext, selection: Selection) -> Tensor:
            return moe.forward(x, xq, context.step.rows.slot, context.step.rows.roles)

        return [
            SubLayerEntry(
                load.hyper(f"{prefix}.hc_attn", text),
                load.vector(f"{prefix}.attn_norm.weight"),
                attention.forward,
                layer if layer in self.engrams else None,
                attention.store,
                layer == text.n_prefill_layer,
                layer in taps,
            ),
            SubLayerEntry(load.hyper(f"{prefix}.hc_ffn", text), load.vector(f"{prefix}.ffn_norm.weight"), run_moe),
        ]

    def _bind(self, plan: Plan) -> None:
        text, m = self.text, self.text.hc_mult
        self._embed = plan.bind("embed", "embed", w=self.embedding.fmt.value)
        self._expand = plan.bind("hc_expand", "embed", m=m)
        self._enter, self._step = plan.bind("hc_enter", "hc", m=m), plan.bind("hc_step", "hc", m=m)
        self._post, self._collapse = plan.bind("hc_post", "hc", m=m), plan.bind("hc_collapse", "hc", m=m)
        self._gather = plan.bind("gather_rows", "step")
        self._norm = plan.bind("rms_norm", "norm", quant=False)
        self._logits = plan.bind("linear", "head", x="bf16", out="f32", **weight_attrs(self.head))
        self._draw = plan.bind("head_sample", "head", x="bf16", out="f32", **weight_attrs(self.head))
        self._entry_slots = plan.bind("aux.entry_slots", "step")
        self._window_slots = plan.bind("aux.window_slots", "step", window=text.sliding_window)
        self._visible = plan.bind("aux.visible", "step")
        self._group_start = plan.bind("aux.group_start", "step")

    def forward(self, step: StepInput) -> Tensor:
        """Run the rows of a step.

        Returns:
            bf16 [T, H], the collapsed trunk before the final norm; zeros for rows that are not kept.  Writes caches
            and state arrays, those of the draft stages included.
        """
        kept = step.kept
        context = self.prepare(step)
        rows, selection = step.rows, Selection()
        embedded = self._embed(rows.ids, self.embedding, step.override, step.override_index)
        trunk = self._expand(embedded, self.text.hc_mult)
        del embedded
        first = self.entries[0]
        trunk = self._remember(first, trunk, context)
        taps = [self._mean(trunk)] if first.tap else []
        x, xq, mix = self._enter(trunk, self.first_pre[: rows.ids.shape[0]], first.hyper, first.norm)
        if first.store is not None:
            first.store(x, context)
        y = first.run(x, xq, context, selection)
        for entry in self.entries[1:]:
            # Engram and a sub-layer make the largest arrays of a step: what is not read again is not held beside them.
            if entry.engram is None:
                trunk, x, xq, mix = self._step(y, trunk, mix, entry.hyper, entry.norm)
                del y
            else:
                trunk = self._post(y, trunk, mix.post, mix.comb)
                del y, x, xq
                trunk = self._remember(entry, trunk, context)
                x, xq, mix = self._enter(trunk, mix.pre, entry.hyper, entry.norm)
            if entry.store is not None:
                entry.store(x, context)
            if entry.boundary and step.window_first_upper is not None:
                if kept is not None and kept.rows.shape[0] == 0:
                    return self.narrowing.widen(x, kept)
                context = self.narrowing.context(context, step.window_first_upper)
                if kept is not None:
                    trunk, x, xq, mix = self.narrowing.entering(Entering(trunk, x, xq, mix), kept.rows)
                    taps = [self._gather(tap, kept.rows) for tap in taps]
            if entry.tap:
                taps.append(self._mean(trunk))
            y = entry.run(x, xq, context, selection)
        if self.drafter is not None:
            self.drafter.write_context(taps, context)
        hidden: Tensor = self._collapse(self._post(y, trunk, mix.post, mix.comb), mix.pre)
        return hidden if kept is None else self.narrowing.widen(hidden, kept)

    def logits(self, hidden: Tensor, index: Tensor) -> Tensor:
        """Logits f32 [N, V] of the rows index int32 [N] (-1: a zero row) of hidden bf16 [T, H]."""
        result: Tensor = self._logits(self._normed(hidden, index), self.head, torch.float32)
        return result

    def draw_tokens(self, hidden: Tensor, index: Tensor, *numbers: Any) -> Tensor:
        """Tokens int32 [N], -1 for none; see `tandem.model.registry.Model`."""
        token: Tensor = self._draw(self._normed(hidden, index), self.head, *numbers)
        return token

    def _normed(self, hidden: Tensor, index: Tensor) -> Tensor:
        normed: Tensor = self._norm(self._gather(hidden, index), self.norm, self.eps, False)[0]
        return normed

    def draft_block(
        self, anchors: Tensor, positions: Tensor, slots: Tensor, window_table: Tensor, window_first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Hidden bf16 [N, drafts, H] and base logits f32 [N, drafts, V]; see `tandem.model.registry.Model`."""
        return self._drafting().block(anchors, positions, slots, window_table, window_first)

    def draft_head(self, base: Tensor, hidden: Tensor, previous: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """Logits f32 [N, V] and confidence f32 [N] of draft i; see `tandem.model.registry.Model`."""
        return self._drafting().heads(base, hidden, previous, i)

    def _drafting(self) -> Drafter:
        if self.drafter is None:
            raise ConfigError(
                "the model makes no drafts",
                where="draft_tokens of the caches",
                why="it is 0, so the draft module was not loaded",
                fix="build the model with draft_tokens above 0",
            )
        return self.drafter

    def remember(self, rows: Rows) -> None:
        """Write the n-gram history of rows whose tokens are not run, because the caches hold what they gave."""
        if self.engram_context is not None:
            self.engram_context.forward(rows)

    def _remember(self, entry: SubLayerEntry, trunk: Tensor, context: StepContext) -> Tensor:
        if entry.engram is None:
            return trunk
        looked_up = context.engram[entry.engram]
        return self.engrams[entry.engram].forward(trunk, looked_up, context.step.rows.roles)

    def prepare(self, step: StepInput) -> StepContext:
        """Derive once what all layers share: slots, windows, rotations, visible lengths, Engram rows."""
        rows, spec = step.rows, self.caches.spec
        positions, slot = rows.positions, rows.slot
        scaled = self._gather(self.scaled_table, positions)
        writer = slot if step.writer is None else step.writer
        ratios = {}
        for ratio in self.ratios:
            starts = self._group_start(positions, ratio)
            ratios[ratio] = RatioContext(
                write_slots=self._entry_slots(
                    positions, writer, step.block_table, spec.block_size // ratio, ratio, False
                ),
                lens=self._visible(positions, slot, ratio),
                cos_sin=scaled if ratio == 1 else self._gather(self.scaled_table, starts),
                width=step.width[ratio],
            )
        engram: dict[int, QTensor] = {}
        if self.engram_context is not None:
            grams = self.engram_context.forward(rows)
            engram = {layer: module.look_up(grams) for layer, module in self.engrams.items()}
        return StepContext(
            step=step,
            window_write=self._entry_slots(positions, slot, step.window_table, spec.window_block, 1, True),
            window_read=self._window_slots(
                positions, slot, step.window_table, step.window_first, spec.window_block, self.text.sliding_window
            ),
            plain=self._gather(self.plain_table, positions),
            scaled=scaled,
            ratios=ratios,
            engram=engram,
        )

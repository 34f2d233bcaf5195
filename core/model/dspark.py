"""The draft module (DSpark): a few small layers that propose the tokens after the newest one.

Every stage keeps a window cache of *context keys*, made from features of the backbone at the rows it has
read.  After a token was drawn, a block of rows stands behind those: the new token first, filler tokens after
it.  All rows of a block see its context and one another, and the i-th gives what the i-th draft is drawn
from, up to the token before it, which a low-rank (Markov) head adds once that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from tandem.contract.plan import Plan, weight_attrs
from tandem.contract.types import HcWeights, KVCache, PackedWeight, QFormat, QTensor, WeightKind
from tandem.errors import ConfigError
from tandem.model.attention import AttentionParts
from tandem.model.caches import ModelCaches
from tandem.model.config import TextConfig
from tandem.model.moe import MoE
from tandem.model.step import StepContext
from tandem.model.weights import WeightLoader

Tensor = torch.Tensor
BF16 = torch.bfloat16
FIRST_TENSOR = "mtp.0.main_proj.weight"


_OFF = "ask for 0 draft tokens, or use a checkpoint with draft stages"


def check_draft_count(text: TextConfig, draft_tokens: int, asked_by: str | None = None) -> None:
    """Refuse a number of drafts that the model is not made for.

    Args:
        draft_tokens: drafts after each drawn token; 0 asks for none and always fits.
        asked_by: option that asks for them; the error names it instead of the field that is in the way.
    Raises:
        ConfigError: with the option or the field.
    """
    if draft_tokens == 0:
        return
    if not text.num_nextn_predict_layers:
        why = f"{draft_tokens} draft tokens are asked for, and num_nextn_predict_layers is 0"
        raise _refuse(asked_by or "text_config.num_nextn_predict_layers", why, _OFF)
    if not 0 < draft_tokens <= text.dspark_block_size:
        why = f"{draft_tokens} draft tokens are asked for, and a block (dspark_block_size) has {text.dspark_block_size}"
        fix = f"ask for 0 to {text.dspark_block_size} draft tokens"
        raise _refuse(asked_by or "text_config.dspark_block_size", why, fix)


def check_drafts(text: TextConfig, names: Iterable[str], draft_tokens: int) -> None:
    """Refuse a number of drafts that the checkpoint cannot give: as `check_draft_count`, with its tensors.

    Args:
        names: tensors of the checkpoint.
    Raises:
        ConfigError: names the field or tensor that is in the way.
    """
    check_draft_count(text, draft_tokens)
    if draft_tokens and FIRST_TENSOR not in set(names):
        why = f"{draft_tokens} draft tokens are asked for, and the checkpoint has no such tensor"
        raise _refuse(f"tensor '{FIRST_TENSOR}'", why, _OFF)


def _refuse(where: str, why: str, fix: str) -> ConfigError:
    return ConfigError("this model cannot make these drafts", where=where, why=why, fix=fix)


class _Rows(NamedTuple):
    """Rows of all blocks, those of a block together.

    cos_sin f32 [T, rd]; window int32 [T, W], slots of the context; own int32 [T] and keys int32 [T, B], where a row's
    key goes and where those of its block are; slot and roles int32 [T].
    """

    cos_sin: Tensor
    window: Tensor
    own: Tensor
    keys: Tensor
    slot: Tensor
    roles: Tensor


class _SubLayer(NamedTuple):
    """A sub-layer with what the residual streams need to enter it."""

    hyper: HcWeights
    norm: Tensor
    run: Callable[[Tensor, QTensor, _Rows], Tensor]


class _Stage:
    """One stage: attention and experts.  Keys of draft rows go to own_keys, which all stages use in turn."""

    def __init__(
        self, plan: Plan, load: WeightLoader, text: TextConfig, stage: int, window: KVCache, own_keys: KVCache
    ) -> None:
        prefix = f"mtp.{stage}"
        self.own_keys = own_keys
        self.attention = AttentionParts(plan, load, text, f"{prefix}.attn", window, own_keys)
        counts = text.dspark_n_routed_experts, text.dspark_num_experts_per_tok
        self.moe = MoE(plan, load, text, f"{prefix}.ffn", *counts)
        self.sublayers = [
            _SubLayer(load.hyper(f"{prefix}.hc_{name}", text), load.vector(f"{prefix}.{name}_norm.weight"), run)
            for name, run in (("attn", self._attend), ("ffn", self._experts))
        ]

    def _attend(self, x: Tensor, xq: QTensor, rows: _Rows) -> Tensor:
        q, _ = self.attention.query(xq)
        self.attention.write_keys(xq, rows.cos_sin, self.own_keys, rows.own)
        return self.attention.attend(q, rows.cos_sin, rows.window, rows.keys, "decode")

    def _experts(self, x: Tensor, xq: QTensor, rows: _Rows) -> Tensor:
        return self.moe.forward(x, xq, rows.slot, rows.roles)


class Drafter:
    """The draft module of one model instance.

    A block always has ``dspark_block_size`` rows, however many drafts are in use: its rows see one another, and the
    module was trained with all of them.  So what draft i is drawn from does not depend on how many are made.

    Args:
        plan: binds every op used here.
        load: reads and packs weights.
        text: the model; `check_drafts` has passed.
        caches: made for ``spec.draft_tokens`` drafts.
        own_keys: cache of the draft rows' keys, of ``caches``.
        embedding, head: packed token embedding and output head of the backbone, which are shared.
        plain_table: rotary table f32 [P, rd] of window-only layers, as long as the longest sequence and a block.
        max_rows: most rows of a step.
        progress: called with a module's name as it is loaded.
    Attributes:
        drafts: drafts made after each drawn token.
        temperatures: divisors of the confidence's logit, one for each draft; they change no draft.
    """

    def __init__(
        self,
        plan: Plan,
        load: WeightLoader,
        text: TextConfig,
        caches: ModelCaches,
        own_keys: KVCache,
        embedding: PackedWeight,
        head: PackedWeight,
        plain_table: Tensor,
        max_rows: int,
        progress: Callable[[str], None],
    ) -> None:
        if load.shard.experts is not None:
            why = "this rank holds a part of the experts, and the draft stages have other experts than the backbone"
            raise _refuse("shard.experts", why, "ask for 0 draft tokens where experts are split over ranks")
        self.text, self.eps, self._plain = text, text.rms_norm_eps, plain_table
        self._embedding, self._head = embedding, head
        self.drafts, self._block = caches.spec.draft_tokens, text.dspark_block_size
        self.temperatures = (1.0,) * self.drafts
        self._window_block = caches.spec.window_block
        self.stages = []
        for stage in range(text.num_nextn_predict_layers):
            progress(f"mtp.{stage}")
            window = caches.window[text.num_hidden_layers + stage]
            self.stages.append(_Stage(plan, load, text, stage, window, own_keys))
        self.main_proj, self.main_norm = load.linear("mtp.0.main_proj"), load.vector("mtp.0.main_norm.weight")
        last = f"mtp.{text.num_nextn_predict_layers - 1}"
        self.norm = load.vector(f"{last}.norm.weight")
        shape = (text.vocab_size, text.dspark_markov_rank)
        self.markov_embedding = load.bf16(WeightKind.EMBED, f"{last}.markov_head.embed.weight", shape)
        self.markov_head = load.bf16(WeightKind.LINEAR, f"{last}.markov_head.head.weight", shape)
        width = text.hidden_size + text.dspark_markov_rank
        self.confidence = load.bf16_row(f"{last}.confidence_head.proj.weight", width)
        self._buffers(plan, max_rows, max(max_rows, caches.spec.max_slots))
        self._bind(plan)

    def _buffers(self, plan: Plan, max_rows: int, max_blocks: int) -> None:
        """Constants, and the features of a step: one row by row and tap, so that a row's taps lie together."""
        backend, taps, m = plan.backend, len(self.text.dspark_target_layer_ids), self.text.hc_mult
        self._features = backend.empty((max_rows * taps + 1, self.text.hidden_size), BF16)
        places = np.arange(max_rows * taps, dtype=np.int32).reshape(max_rows, taps)
        self._places = [backend.from_host(np.ascontiguousarray(places[:, tap])) for tap in range(taps)]
        one_hot = np.zeros((max_blocks * self._block, m), dtype=np.float32)
        one_hot[:, 0] = 1.0
        self._first_pre = backend.from_host(one_hot)
        used = np.arange(max_blocks * self._block, dtype=np.int32).reshape(max_blocks, -1)[:, : self.drafts]
        self._used = backend.from_host(np.ascontiguousarray(used).reshape(-1))
        self._roles = backend.from_host(np.zeros(max_blocks * self._block, dtype=np.int32))

    def _bind(self, plan: Plan) -> None:
        text, m, head = self.text, self.text.hc_mult, self._head
        self._scatter = plan.bind("scatter_rows", "mtp.taps")
        self._quantize = plan.bind("quantize", "mtp.0.main_proj", fmt="mxfp8")
        self._project = plan.bind("linear", "mtp.0.main_proj", x="mxfp8", out="bf16", **weight_attrs(self.main_proj))
        self._main_norm = plan.bind("rms_norm", "mtp.0.main_norm", quant=True)
        self._rows = plan.bind("aux.draft_rows", "mtp.block", block=self._block)
        self._gather = plan.bind("gather_rows", "mtp.block")
        self._window_slots = plan.bind("aux.window_slots", "mtp.block", window=text.sliding_window)
        self._embed = plan.bind("embed", "mtp.block", w=self._embedding.fmt.value)
        self._expand = plan.bind("hc_expand", "mtp.block", m=m)
        self._enter, self._step = plan.bind("hc_enter", "mtp.hc", m=m), plan.bind("hc_step", "mtp.hc", m=m)
        self._post, self._collapse = plan.bind("hc_post", "mtp.hc", m=m), plan.bind("hc_collapse", "mtp.hc", m=m)
        self._norm = plan.bind("rms_norm", "mtp.norm", quant=False)
        self._logits = plan.bind("linear", "mtp.head", x="bf16", out="f32", **weight_attrs(head))
        self._heads = plan.bind("draft_heads", "mtp.heads", x="bf16", out="f32", **weight_attrs(self.markov_head))

    def write_context(self, taps: Sequence[Tensor], context: StepContext) -> None:
        """Write every stage's context keys of the rows of a step.

        Args:
            taps: means of the residual streams bf16 [T, H] at the entry of each target layer.
            context: of the same T rows.


        Keys of drafts that are rejected later are written too: the rows that take their positions write over them,
        before any block sees these positions.
        """
        rows = taps[0].shape[0]
        for tap, places in zip(taps, self._places, strict=True):
            self._scatter(self._features, places[:rows], tap)
        features = self._features[: rows * len(taps)].view(rows, -1)
        projected = self._project(self._quantize(features, QFormat.MXFP8), self.main_proj, BF16)
        _, main = self._main_norm(projected, self.main_norm, self.eps, True)
        for stage in self.stages:
            attention = stage.attention
            attention.write_keys(main, context.plain, attention.window, context.window_write)

    def block(
        self, anchors: Tensor, positions: Tensor, slots: Tensor, window_table: Tensor, window_first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run the blocks of N requests; see `tandem.model.registry.Model.draft_block`."""
        made = self._rows(anchors, positions, slots, self._block, self.text.dspark_noise_token_id)
        ids, places, slot, context, own = (part.view(-1) for part in made[:-1])
        keys = made[-1].view(-1, self._block)
        window = self._window_slots(
            context, slot, window_table, window_first, self._window_block, self.text.sliding_window
        )
        count = ids.shape[0]
        rows = _Rows(self._gather(self._plain, places), window, own, keys, slot, self._roles[:count])
        hidden = self._run(self._embed(ids, self._embedding, None, None), rows)
        if self.drafts < self._block:
            hidden = self._gather(hidden, self._used[: anchors.shape[0] * self.drafts])
        normed, _ = self._norm(hidden, self.norm, self.eps, False)
        base = self._logits(normed, self._head, torch.float32)
        shape = (anchors.shape[0], self.drafts, -1)
        return hidden.view(shape), base.view(shape)

    def _run(self, embedded: Tensor, rows: _Rows) -> Tensor:
        """Embedded rows bf16 [T, H] through all stages -> bf16 [T, H], collapsed, before the last norm."""
        first, *others = [sublayer for stage in self.stages for sublayer in stage.sublayers]
        trunk = self._expand(embedded, self.text.hc_mult)
        x, xq, mix = self._enter(trunk, self._first_pre[: trunk.shape[0]], first.hyper, first.norm)
        y = first.run(x, xq, rows)
        for sublayer in others:
            trunk, x, xq, mix = self._step(y, trunk, mix, sublayer.hyper, sublayer.norm)
            y = sublayer.run(x, xq, rows)
        hidden: Tensor = self._collapse(self._post(y, trunk, mix.post, mix.comb), mix.pre)
        return hidden

    def heads(self, base: Tensor, hidden: Tensor, previous: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """Logits and confidence of draft i; see `tandem.model.registry.Model.draft_head`."""
        logits, confidence = self._heads(
            base, hidden, previous, self.markov_embedding, self.markov_head, self.confidence, self.temperatures[i]
        )
        return logits, confidence

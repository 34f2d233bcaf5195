"""Faults of attention: projections, rotation, compression, windows, caches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.mutation import Fault, edit
from support.teacher import Wrap

from tandem.contract.environment import COMPOSITE
from tandem.contract.opspec import OpFunction
from tandem.contract.plan import Plan
from tandem.contract.types import CacheKind, KVCache, KVLayout, QFormat
from tandem.model import caches, deepseek_v41
from tandem.model.attention import Attention
from tandem.model.compressor import Compressor
from tandem.model.config import TextConfig
from tandem.model.indexer import Indexer
from tandem.model.rope import frequencies, rope_table
from tandem.ops.numerics import decode_rows, encode_rows

Tensor = torch.Tensor
ATTENTION = "model.attention"
MODEL = "model.deepseek_v41"
ROPE = "ops.rope"


def _normalised_heads(attn_block: OpFunction) -> OpFunction:
    def run(q: Tensor, *rest: Any) -> Any:
        wide = q.float()
        return attn_block((wide * torch.rsqrt(wide.square().mean(-1, keepdim=True))).to(q.dtype), *rest)

    return run


def _amplified(patch: pytest.MonkeyPatch) -> None:
    """YaRN's usual factor on cos and sin, which this model does not have."""

    def table(freqs: Any, positions: int) -> Any:
        made = rope_table(freqs, positions)
        plain = (freqs == frequencies(2 * len(freqs), 10000.0)).all()
        return made if plain else made * (0.1 * math.log(4) + 1)

    patch.setattr(deepseek_v41, "rope_table", table)


def _plain_window_keys(patch: pytest.MonkeyPatch) -> None:
    """Layers with compressed keys rotate their window keys by the other table."""
    forward, made = Attention.forward, Attention.__init__

    def init(self: Attention, *args: Any) -> None:
        made(self, *args)
        write = self._write
        self._write = lambda kv, norm, eps, _, cache, slots: write(kv, norm, eps, self.plain_now, cache, slots)

    def run(self: Any, x: Tensor, xq: Any, context: Any, selection: Any) -> Tensor:
        self.plain_now = context.plain
        return forward(self, x, xq, context, selection)

    patch.setattr(Attention, "__init__", init)
    patch.setattr(Attention, "forward", run)


def _kept_wide(kind: CacheKind, first: int) -> Callable[[pytest.MonkeyPatch], dict[str, Wrap]]:
    """Channels from ``first`` on of one kind of cache are read as they were before quantisation."""

    def prepare(patch: pytest.MonkeyPatch) -> dict[str, Wrap]:
        beside: dict[int, Tensor] = {}

        def store(kv_store: OpFunction) -> OpFunction:
            def run(x: Tensor, cache: KVCache, slots: Tensor) -> None:
                if cache.layout.kind is kind:
                    empty = torch.zeros(cache.data.shape[0], x.shape[1], dtype=x.dtype)
                    beside.setdefault(id(cache), empty)[slots.long()] = x
                kv_store(x, cache, slots)

            return run

        def load(kv_load: OpFunction) -> OpFunction:
            def run(cache: KVCache, slots: Tensor) -> Tensor:
                values: Tensor = kv_load(cache, slots).clone()
                if id(cache) in beside:
                    wide = beside[id(cache)][slots.clamp_min(0).long()]
                    values[..., first:] = torch.where((slots >= 0).unsqueeze(-1), wide, 0)[..., first:]
                return values

            return run

        return {"kv_store": store, "kv_load": load}

    return prepare


def _layout(name: str, fmt: QFormat, *composites: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Another format of a cache; ``composites``: ops whose native kernels do not read it."""
    original = getattr(caches, name)

    def made(*args: Any) -> KVLayout:
        right: KVLayout = original(*args)
        return KVLayout(right.kind, fmt, right.dim, right.block_entries)

    def prepare(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(caches, name, made)
        patch.setenv(COMPOSITE, ",".join(composites))

    return prepare


def _rounded_first(kv_write: OpFunction) -> OpFunction:
    """Quantise, then rotate (and quantise again, as the cache can hold nothing else)."""
    from tandem.ops.rms_norm import rms_norm

    def run(x: Tensor, norm: Tensor, eps: float, cos_sin: Tensor, cache: KVCache, slots: Tensor) -> Tensor:
        normed = rms_norm(None, x, norm, eps, False)[0]
        codes, scales = encode_rows(normed, cache.layout.fmt)
        values = decode_rows(codes, scales, cache.layout.fmt).to(x.dtype)
        kv_write(values, None, 0.0, cos_sin, cache, slots)  # the norm is stopped below
        return normed

    return run


def _passing(rms_norm: OpFunction) -> OpFunction:
    """A norm without weight and epsilon passes its input on."""

    def run(x: Tensor, weight: Tensor | None, eps: float, quant: bool) -> Any:
        return (x, None) if weight is None and eps == 0.0 else rms_norm(x, weight, eps, quant)

    return run


def _without_window(patch: pytest.MonkeyPatch) -> None:
    """Compressed entries that lie in the window are left out, as if both held the same."""
    made, forward = Indexer.__init__, Indexer.forward

    def init(self: Any, plan: Plan, load: Any, text: TextConfig, *rest: Any) -> None:
        made(self, plan, load, text, *rest)
        mapped = self._map

        def call(entries: Tensor, *rest: Any) -> Tensor:
            last = (entries + 1) * self.ratio - 1
            inside = last > self.positions_now.unsqueeze(-1) - text.sliding_window
            result: Tensor = mapped(torch.where(inside, -1, entries), *rest)
            return result

        self._map = call

    def run(self: Any, x: Tensor, latent_q: Any, context: Any, selection: Any) -> None:
        self.positions_now = context.step.rows.positions
        forward(self, x, latent_q, context, selection)

    patch.setattr(Indexer, "__init__", init)
    patch.setattr(Indexer, "forward", run)


def _first_of(kind: CacheKind) -> Callable[[Callable[..., tuple[Any, ...]]], Wrap]:
    """Change the arguments of `kv_write` on caches of one kind."""

    def with_change(change: Callable[..., tuple[Any, ...]]) -> Wrap:
        def wrap(kv_write: OpFunction) -> OpFunction:
            def run(*args: Any) -> Any:
                return kv_write(*(change(*args) if args[4].layout.kind is kind else args))

            return run

        return wrap

    return with_change


def _still(cos_sin: Tensor) -> Tensor:
    half = cos_sin.shape[1] // 2
    return torch.cat((torch.ones_like(cos_sin[:, :half]), torch.zeros_like(cos_sin[:, half:])), dim=1)


def _from_source(*names: str) -> Fault:
    """Layers that reuse a selection also take these weights of the layer that made it."""
    source = {2: 1, 5: 4, 7: 6}

    def rename(name: str) -> str:
        parts = name.split(".")
        if parts[0] == "layers" and int(parts[1]) in source and parts[2] == "attn" and parts[3] in names:
            parts[1] = str(source[int(parts[1])])
        return ".".join(parts)

    return Fault(16, f"{names[0]} of the source layer", rename=rename)


def _rotated_latent(patch: pytest.MonkeyPatch) -> None:
    """The index key is made from the rotated latent."""
    from tandem.ops.rope import rope

    made = Compressor.__init__

    def init(self: Compressor, *args: Any) -> None:
        made(self, *args)
        write = self._write_main

        def run(*call: Any) -> Tensor:
            return rope(write(*call).unsqueeze(1), call[3]).squeeze(1)

        self._write_main = run

    patch.setattr(Compressor, "__init__", init)


PROJECTION = [Fault(6, "heads of q normalised", wraps={"attn_block": _normalised_heads})]

ROTATION = [
    edit(7, "halves paired", ROPE, "rope",
         "unflatten(-1, (half, 2))\n    even, odd = pairs[..., 0], pairs[..., 1]",
         "unflatten(-1, (2, half))\n    even, odd = pairs[..., 0, :], pairs[..., 1, :]"),
    edit(7, "first channels rotated", ROPE, "rope", "keep = x.shape[-1] - 2 * half",
         "x = x.roll(2 * half, -1); keep = x.shape[-1] - 2 * half"),
    edit(7, "output not rotated back", "ops.attn_block", "attn_block", "parts.rope(output, cos_sin, True)", "output"),
    edit(7, "output rotated forwards", "ops.attn_block", "attn_block", "cos_sin, True)", "cos_sin, False)",
         variant=True),
    edit(8, "one table for all, plain", ATTENTION, "Attention.forward",
         "context.scaled if compressed else context.plain", "context.plain"),
    edit(8, "one table for all, scaled", ATTENTION, "Attention.forward",
         "context.scaled if compressed else context.plain", "context.scaled"),
    edit(8, "no yarn", "model.rope", "yarn_frequencies", "base / scaling.factor", "base"),
    Fault(8, "amplitude of yarn", prepare=_amplified),
    Fault(8, "window keys by the plain table", prepare=_plain_window_keys),
    edit(8, "compressed keys by the plain table", MODEL, "DeepseekV41.prepare",
         "scaled if ratio == 1 else self._gather(self.scaled_table, starts)", "self._gather(self.plain_table, starts)"),
    edit(8, "index queries by the plain table", "model.indexer", "Indexer.forward", "context.scaled", "context.plain"),
]  # fmt: skip

COMPRESSION = [
    edit(9, "position of the last token", "ops.aux_group_start", "group_start",
         "positions - positions.remainder(ratio)", "positions - positions.remainder(ratio) + ratio - 1"),
    edit(9, "position counted in entries", "ops.aux_group_start", "group_start",
         "positions - positions.remainder(ratio)", "positions // ratio",
         variant=True),
    edit(9, "seen too early", "ops.aux_visible", "visible", "positions + 1", "positions + ratio"),
    edit(9, "seen too late", "ops.aux_visible", "visible", "positions + 1", "positions"),
    Fault(10, "one weight for all channels", wraps={
        "compress_update": lambda op: lambda value, gate, *rest: op(
            value, gate.mean(-1, keepdim=True).expand_as(gate).contiguous(), *rest)}),
    Fault(10, "rounded to bf16", wraps={
        "compress_update": lambda op: lambda value, gate, *rest: op(
            value.bfloat16().float(), gate.bfloat16().float(), *rest)}),
    Fault(10, "gate and value exchanged", wraps={
        "compress_update": lambda op: lambda value, gate, *rest: op(gate, value, *rest)}),
]  # fmt: skip

CORE = [
    Fault(11, "no entry twice", prepare=_without_window),
    edit(11, "sink scaled", "ops.sparse_attn", "sparse_attn", ">= 0, sink, scale)", ">= 0, sink * scale, scale)"),
    edit(11, "no sink", "ops.sparse_attn", "attend_rows", " + torch.exp(sink - peak)", ""),
    Fault(12, "window without the current token", text={"sliding_window": 9}),
    Fault(12, "window one short", text={"sliding_window": 7}, variant=True),
]

CACHES = [
    Fault(13, "rotated channels of the window not quantised", prepare=_kept_wide(CacheKind.WINDOW, 48)),
    Fault(13, "rotated channels of compressed keys not quantised", prepare=_kept_wide(CacheKind.MAIN, 48)),
    Fault(13, "compressed keys in mxfp4", prepare=_layout("main_layout", QFormat.MXFP4)),
    Fault(13, "index keys in nvfp4", prepare=_layout(
        "index_layout", QFormat.NVFP4, "index_scores", "index_scores_at")),
    Fault(13, "quantised before the rotation", wraps={"kv_write": _rounded_first, "rms_norm": _passing}),
    Fault(13, "window keys read before quantisation", prepare=_kept_wide(CacheKind.WINDOW, 0)),
]

REUSE = [_from_source("attn_sink"), _from_source("wkv", "kv_norm"), _from_source("wq_b"), _from_source("wo_a", "wo_b")]

LATENT = [
    Fault(14, "index key from the rotated latent", prepare=_rotated_latent),
    edit(14, "index key from the latent before its norm", "model.compressor", "Compressor.forward",
         "self._key(normed,", "self._key(latent.bfloat16(),"),
    Fault(14, "index key without its norm", wraps={"kv_write": _first_of(CacheKind.INDEX)(
        lambda x, norm, eps, *rest: (x, None, 0.0, *rest)), "rms_norm": _passing}),
    Fault(14, "index key not rotated", wraps={"kv_write": _first_of(CacheKind.INDEX)(
        lambda x, norm, eps, cos_sin, *rest: (x, norm, eps, _still(cos_sin), *rest))}),
    edit(14, "index query from the latent before its norm", ATTENTION, "Attention.forward",
         "self.indexer.forward(x, latent_q,",
         'self.indexer.forward(x, self._quantize(self._linear["wq_a"](xq, self.wq_a, BF16), QFormat.MXFP8),'),
]  # fmt: skip

FAULTS = [*PROJECTION, *ROTATION, *COMPRESSION, *CORE, *CACHES, *LATENT, *REUSE]

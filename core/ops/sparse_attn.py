"""`sparse_attn`: attention of each row over its window and its selected compressed entries.

Args: q[T,Hq,D] bf16, window (cache), window_slots[T,W] i32, main (cache or None), main_slots[T,K] i32 or None,
sink[Hq] f32, scale, hint -> [T,Hq,D] bf16

Reads q bf16 [T, Hq, D] (rotated), the window cache with window_slots int32 [T, W], the main cache with
main_slots int32 [T, K] or None for layers without one, sink f32 [Hq], scale.  A slot of -1 contributes
nothing, whatever memory holds. Returns bf16 [T, Hq, D]: with s = scale * q.k over window slots then main
slots, o = sum(exp(s - M) k) / (sum(exp(s - M)) + exp(sink - M)).  Entries in both caches count twice.  Key is
value. f32 throughout, one rounding; exp(s - M) may be rounded to bf16 once
before it meets k.  `hint` is "prefill" or "decode" and never changes a bit.  A row without
any slot gives zeros.  A NaN in q makes its head NaN in that row, one in an entry every head of the rows that name
it.  Class A.  Row bits do not depend on T.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import KVCache, QFormat
from tandem.ops.numerics import row_sum

Tensor = torch.Tensor


ROWS_AT_A_TIME = 64


@op(
    "sparse_attn",
    classes={"o": "A"},
    parts=("kv_load",),
    attrs=("heads", "dim", "main", "window", "layout", "main_layout"),
    passes=(("kv_load", {"layout": "layout"}), ("kv_load", {"layout": "main_layout"})),
)
def sparse_attn(
    parts: Any,
    q: Tensor,
    window: KVCache,
    window_slots: Tensor,
    main: KVCache | None,
    main_slots: Tensor | None,
    sink: Tensor,
    scale: float,
    hint: str,
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    output = torch.empty_like(q)
    for start in range(0, q.shape[0], ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        slots = window_slots[part]
        keys = parts.kv_load(window, slots)
        if main is not None and main_slots is not None:
            keys = torch.cat((keys, parts.kv_load(main, main_slots[part])), dim=1)
            slots = torch.cat((slots, main_slots[part]), dim=1)
        output[part] = attend_rows(q[part].to(torch.float32), keys.to(torch.float32), slots >= 0, sink, scale)
    return output


def attend_rows(q: Tensor, keys: Tensor, valid: Tensor, sink: Tensor, scale: float) -> Tensor:
    """q [n, Hq, D], keys [n, S, D], valid [n, S] -> o f32 [n, Hq, D], one fixed-shape product per row."""
    scores = q.new_empty((q.shape[0], q.shape[1], keys.shape[1]))
    for t in range(q.shape[0]):
        torch.mm(q[t], keys[t].t(), out=scores[t])
    scores = torch.where(valid.unsqueeze(1), scores * scale, torch.full_like(scores, float("-inf")))
    peak = torch.maximum(scores.amax(-1), sink)
    weights = torch.exp(scores - peak.unsqueeze(-1))
    total = row_sum(weights) + torch.exp(sink - peak)
    output = torch.empty_like(q)
    for t in range(q.shape[0]):
        torch.mm(weights[t], keys[t], out=output[t])
    return output / total.unsqueeze(-1)


@case("sparse_attn", "window-and-main", ROWS)
def _both(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed + 1)
    main_slots = draw.i32(1, 20, rows, 7)
    main_slots[:, 5:] = -1
    return _window(seed, rows) | {
        "main": draw.cache(QFormat.NVFP4, 64, 4, 6, range(1, 20)),
        "main_slots": main_slots,
    }


@case("sparse_attn", "window-only", ROWS)
def _window(seed: int, rows: int) -> dict[str, Any]:
    """Entry 0, which a clamped -1 would read, holds junk."""
    draw = Draw(seed)
    slots = draw.i32(1, 30, rows, 8)
    slots[::2, :3] = -1
    return {
        "q": draw.bf16(rows, 3, 64),
        "window": draw.cache(QFormat.MXFP8, 64, 8, 4, range(1, 30)),
        "window_slots": slots,
        "main": None,
        "main_slots": None,
        "sink": draw.f32(3),
        "scale": 64**-0.5,
        "hint": "prefill",
    }


@case("sparse_attn", "main-cache-of-the-windows-format")
def _one_format(seed: int) -> dict[str, Any]:
    """As for draft rows, whose own keys are window entries."""
    return _both(seed, 6) | {"main": Draw(seed).cache(QFormat.MXFP8, 64, 3, 7)}


@case("sparse_attn", "rows-without-entries")
def _empty(seed: int) -> dict[str, Any]:
    arguments = _both(seed, 4)
    arguments["window_slots"][1] = -1
    arguments["main_slots"][1:3] = -1
    return arguments | {"hint": "decode"}


@case("sparse_attn", "the-same-entry-twice")
def _twice(seed: int) -> dict[str, Any]:
    arguments = _window(seed, 3)
    arguments["window_slots"][:, 4:] = 9
    return arguments


@case("sparse_attn", "many-entries")
def _many(seed: int) -> dict[str, Any]:
    """More entries than one tile holds, so that parts of a sum are merged."""
    draw = Draw(seed)
    window_slots, main_slots = (torch.arange(1, 1 + n, dtype=torch.int32).repeat(3, 1) for n in (150, 530))
    window_slots[1, 70:], main_slots[1, 3:] = -1, -1
    return _window(seed, 3) | {
        "window": draw.cache(QFormat.MXFP8, 64, 8, 20, range(1, 151)),
        "window_slots": window_slots,
        "main": draw.cache(QFormat.NVFP4, 64, 8, 68, range(1, 531)),
        "main_slots": main_slots,
    }


@case("sparse_attn", "nan-in-a-query-and-in-an-entry")
def _nan(seed: int) -> dict[str, Any]:
    arguments = _both(seed, 4)
    arguments["q"][1, 2, 5] = float("nan")
    arguments["window_slots"].clamp_(max=28)
    arguments["window_slots"][2, 6] = 29
    arguments["window"].data[-1, -1] = 255  # a scale of entry 29
    return arguments

"""Attention over several chunks and parts of a head: one program per row, or one per chunk, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tandem.backends.cuda import activations
from tandem.backends.cuda.kernels import _attention_kernels as kernels
from tandem.backends.cuda.kernels.attn_block import attn_block
from tandem.backends.cuda.kernels.sparse_attn import sparse_attn
from tandem.contract.types import CacheKind, KVCache, KVLayout, QFormat
from tandem.errors import LayoutError
from tandem.ops.kv_load import kv_load
from tandem.ops.numerics import decode_rows, encode_rows
from tandem.ops.rope import rope
from tandem.ops.sparse_attn import attend_rows

Tensor = torch.Tensor
ROWS, HEADS, DIM, ROPE = 3, 5, 160, 32
WIDTHS = 130, 200


def _cache(kind: CacheKind, fmt: QFormat, entries: int) -> KVCache:
    layout = KVLayout(kind, fmt, DIM, 8)
    data = torch.full((entries + 1, layout.entry_bytes), 255, dtype=torch.uint8)
    data[:-1] = torch.cat(encode_rows(torch.randn(entries, DIM).to(torch.bfloat16), fmt), dim=1)
    return KVCache(layout, entries // 8, data)


@pytest.fixture
def call() -> dict[str, Any]:
    """Rows with holes, with a chunk that has nothing between others, and with nothing at all."""
    torch.manual_seed(0)
    slots = [torch.randint(0, 240, (ROWS, width), dtype=torch.int32) for width in WIDTHS]
    slots[0][0, :60] = slots[0][1, :128] = slots[1][1, 40:] = slots[0][2] = slots[1][2] = -1
    return {
        "q": torch.randn(ROWS, HEADS, DIM).to(torch.bfloat16),
        "window": _cache(CacheKind.WINDOW, QFormat.MXFP8, 240),
        "window_slots": slots[0],
        "main": _cache(CacheKind.MAIN, QFormat.NVFP4, 240),
        "main_slots": slots[1],
        "sink": torch.randn(HEADS),
        "scale": DIM**-0.5,
        "hint": "decode",
    }


@pytest.fixture
def angles() -> Tensor:
    angle = torch.linspace(0.1, 30.0, ROWS * ROPE // 2).view(ROWS, -1)
    return torch.cat((angle.cos(), angle.sin()), dim=1)


def _whole_rows(monkeypatch: pytest.MonkeyPatch, function: Callable[[], Any]) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "SPLIT_ROWS", 0)
        return function()


def _reference(call: dict[str, Any], q: Tensor) -> Tensor:
    slots = torch.cat((call["window_slots"], call["main_slots"]), dim=1)
    keys = torch.cat([kv_load(call[name], call[f"{name}_slots"]) for name in ("window", "main")], dim=1)
    return attend_rows(q.double(), keys.double(), slots >= 0, call["sink"].double(), call["scale"])


def test_rows_or_chunks(call: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = sparse_attn(**call)
    rows = _whole_rows(monkeypatch, lambda: sparse_attn(**call))
    assert torch.equal(chunks.view(torch.int16), rows.view(torch.int16))
    wanted = _reference(call, call["q"])
    assert (chunks.double() - wanted).abs().max() < 0.01 * wanted.abs().max()
    assert not chunks[2].any()


def test_wider_tables(call: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = sparse_attn(**call)
    call["main_slots"] = torch.nn.functional.pad(call["main_slots"], (0, 100), value=-1)
    assert torch.equal(narrow, sparse_attn(**call))
    assert torch.equal(narrow, _whole_rows(monkeypatch, lambda: sparse_attn(**call)))


def test_block(call: dict[str, Any], angles: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = attn_block(cos_sin=angles, **call)
    rows = _whole_rows(monkeypatch, lambda: attn_block(cos_sin=angles, **call))
    got = activations.to_canonical(chunks)
    assert torch.equal(got.data, rows.data)
    assert torch.equal(got.scale, activations.to_canonical(rows).scale)
    output = _reference(call, rope(call["q"], angles)).to(torch.bfloat16)
    wanted = rope(output, angles, True).flatten(1).to(torch.float32)
    value = decode_rows(got.data, got.scale, QFormat.MXFP8)
    step = wanted.unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True).expand(-1, -1, 32).flatten(1) / 14
    assert ((value - wanted).abs() <= step + 0.01 * wanted.abs().max()).all()
    filler = chunks.scale.view(-1, 32, 4, 4)[-1, :ROWS, 0, HEADS * DIM // 32 % 4 :]
    assert (filler == 127).all()


def test_head_width(call: dict[str, Any], angles: Tensor) -> None:
    call["q"] = call["q"][..., :48].contiguous()
    with pytest.raises(LayoutError, match="multiple of 32"):
        attn_block(cos_sin=angles, **call)

"""Attention on the emulated device at official widths, and the bits of a row however its chunks are dealt out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.ascend_counts import counted

from tandem.backends.ascend.kernels import _attention, attn_block, quantize, rope, sparse_attn
from tandem.backends.ascend.plan import EMULATED, Device
from tandem.contract.backend import Backend
from tandem.contract.cases import Draw, materialise
from tandem.contract.types import CacheKind, KVCache, KVLayout, QFormat
from tandem.ops.numerics import decode_rows
from tandem.ops.sparse_attn import attend_rows

Tensor = torch.Tensor


def arguments(heads: int, dim: int, window: int, main: int, rows: int) -> dict[str, Any]:
    draw = Draw(heads + dim + rows)
    slots, main_slots = draw.i32(-1, 250, rows, window), draw.i32(-1, 600, rows, max(main, 1))
    return {
        "q": draw.bf16(rows, heads, dim),
        "window": draw.cache(QFormat.MXFP8, dim, 64, 4),
        "window_slots": slots,
        "main": draw.cache(QFormat.NVFP4, dim, 64, 10) if main else None,
        "main_slots": main_slots if main else None,
        "sink": draw.f32(heads),
        "scale": dim**-0.5,
        "hint": "decode",
    }


def every_chunk(device: Device, rows: int, heads: int, lists: list[tuple[KVLayout, int]]) -> int:
    """In the place of `_attention.spans`: a task of its own for each, few as the emulated cores are."""
    return sum(_attention.chunks(count) for _, count in lists)


def entries(cache: KVCache, slots: Tensor) -> Tensor:
    held, codes = cache.data[slots.clamp_min(0).long()], cache.layout.data_bytes
    values = decode_rows(held[..., :codes].contiguous(), held[..., codes:].contiguous(), cache.layout.fmt)
    return torch.where((slots >= 0).unsqueeze(-1), values, torch.zeros_like(values))


@pytest.mark.parametrize(
    ("heads", "dim", "window", "main", "rows"),
    [(64, 512, 128, 512, 1), (40, 512, 128, 100, 2), (130, 64, 8, 8, 3), (1, 32, 70, 0, 2)],
)
def test_values(ascend: Backend, heads: int, dim: int, window: int, main: int, rows: int) -> None:
    """Parts of heads, widths that L0 holds in one step and in several, lists that fill their chunks and that do not."""
    given = materialise(arguments(heads, dim, window, main, rows), ascend, 0)
    got = sparse_attn.sparse_attn(**given).to(torch.float64)
    keys, slots = entries(given["window"], given["window_slots"]), given["window_slots"]
    if main:
        keys = torch.cat((keys, entries(given["main"], given["main_slots"])), 1)
        slots = torch.cat((slots, given["main_slots"]), 1)
    wide = given["q"].double(), keys.double(), slots >= 0, given["sink"].double()
    exact = attend_rows(*wide, given["scale"])
    assert float((got - exact).abs().max()) <= 2.0**-8 * float(exact.abs().max())


@pytest.mark.parametrize(("heads", "dim", "rows"), [(64, 512, 1), (64, 64, 5), (5, 32, 3), (72, 32, 2)])
@pytest.mark.parametrize("op", [sparse_attn, attn_block])
def test_a_rows_bits_do_not_depend_on_how_chunks_are_dealt_out(
    ascend: Backend, monkeypatch: pytest.MonkeyPatch, op: Any, heads: int, dim: int, rows: int
) -> None:
    """Whole rows to a task; then a chunk to a task, of the widest row more chunks than UB holds at a time."""
    given = arguments(heads, dim, 128, 500, rows)
    if op is attn_block:
        given["cos_sin"] = Draw(7).cos_sin(rows, 16)
    given = materialise(given, ascend, 0)
    [run] = op.OPS.values()
    whole = run(**given)
    monkeypatch.setattr(_attention, "spans", every_chunk)
    dealt = run(**given)
    if op is attn_block:
        assert (dealt.scale == whole.scale).all()
        whole, dealt = whole.data, dealt.data
    assert (dealt.view(torch.uint8) == whole.view(torch.uint8)).all()


@pytest.mark.parametrize("op", [sparse_attn, attn_block])
def test_the_plan_of_dealt_chunks_is_what_the_kernels_do(
    ascend: Backend, monkeypatch: pytest.MonkeyPatch, op: Any
) -> None:
    given = arguments(64, 512, 128, 512, 1)
    given["window_slots"], given["main_slots"] = given["window_slots"].clamp(min=1), given["main_slots"].clamp(min=1)
    if op is attn_block:
        given["cos_sin"] = Draw(7).cos_sin(1, 64)
    given = materialise(given, ascend, 0)
    monkeypatch.setattr(_attention, "spans", every_chunk)
    with counted() as launches:
        next(iter(op.OPS.values()))(**given)
    stated = next(iter(op.PLAN.values()))(EMULATED, **given)
    assert [(plan.kind, plan.blocks) for plan in stated] == [(one.kind, one.blocks) for one in launches]
    for plan, one in zip(stated, launches, strict=True):
        for told, counts in ((plan.written, one.written), (plan.ub, one.ub), (plan.l1, one.l1)):
            assert told == pytest.approx(counts, rel=0.1)
        assert one.distinct_read <= 1.1 * plan.read <= 1.2 * one.read


def test_chunks_are_dealt_out_where_that_shortens_the_wait() -> None:
    """On 36 cube cores, of rows with ten chunks: a wave of one for one row, three for ten rows, four for eleven."""
    window, main = KVLayout(CacheKind.WINDOW, QFormat.MXFP8, 64, 4), KVLayout(CacheKind.MAIN, QFormat.NVFP4, 64, 4)
    lists = [(window, 128), (main, 512)]
    found = [_attention.spans(Device(36, 72), rows, 64, lists) for rows in (0, 1, 10, 11)]
    assert found == [1, 10, 10, 1]
    assert _attention.spans(Device(36, 72), 1, 64, lists[:1]) == 1


@pytest.mark.parametrize(
    ("heads", "dim", "turned", "rows"),
    [(64, 512, 64, 1), (3, 32, 32, 2), (5, 96, 6, 5), (1, 32, 2, 3), (72, 64, 16, 2)],
)
def test_a_block_gives_the_bytes_of_its_parts(ascend: Backend, heads: int, dim: int, turned: int, rows: int) -> None:
    """Even and odd numbers of groups, whose last vector core has an even or an odd number; parts of heads."""
    given = arguments(heads, dim, 40, 64, rows) | {"cos_sin": Draw(7).cos_sin(rows, turned)}
    given = materialise(given, ascend, 0)
    angles = given.pop("cos_sin")
    got = attn_block.attn_block(cos_sin=angles, **given)
    rotated = rope.rope(given["q"], angles)
    outputs = rope.rope(sparse_attn.sparse_attn(**(given | {"q": rotated})), angles, True)
    expected = quantize.quantize(outputs.flatten(1), QFormat.MXFP8)
    assert (got.data == expected.data).all()
    assert (got.scale == expected.scale).all()

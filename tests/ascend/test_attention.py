"""Attention on the emulated device at official widths, and the bits of a row however its heads are dealt out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tandem.backends.ascend.kernels import attn_block, quantize, rope, sparse_attn
from tandem.contract.backend import Backend
from tandem.contract.cases import Draw, materialise
from tandem.contract.types import KVCache, QFormat
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


def entries(cache: KVCache, slots: Tensor) -> Tensor:
    held, codes = cache.data[slots.clamp_min(0).long()], cache.layout.data_bytes
    values = decode_rows(held[..., :codes].contiguous(), held[..., codes:].contiguous(), cache.layout.fmt)
    return torch.where((slots >= 0).unsqueeze(-1), values, torch.zeros_like(values))


@pytest.mark.parametrize(
    ("heads", "dim", "window", "main", "rows"),
    [(64, 512, 128, 512, 2), (40, 512, 128, 100, 1), (130, 64, 8, 8, 3), (1, 32, 70, 0, 2)],
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


def test_a_rows_bits_do_not_depend_on_how_heads_are_dealt_out(ascend: Backend) -> None:
    """One row is cut into parts of few heads, several are not."""
    given = materialise(arguments(64, 64, 40, 90, 5), ascend, 0)
    whole = sparse_attn.sparse_attn(**given)
    for row in range(5):
        cut = {name: given[name][row : row + 1].contiguous() for name in ("q", "window_slots", "main_slots")}
        assert (sparse_attn.sparse_attn(**(given | cut)).view(torch.int16) == whole[row].view(torch.int16)).all()


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

"""Kernels that move, look up and expand rows, where conformance does not reach: rows of several pieces, more rows than
cores, and other sizes of blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.ascend_counts import counted

from tandem.backends.ascend.kernels import (
    block_max,
    embed,
    gather_rows,
    hc_expand,
    hc_mean,
    pool_expand,
    scatter_rows,
)
from tandem.backends.ascend.plan import EMULATED
from tandem.contract.backend import Backend
from tandem.contract.opspec import OP_TABLE
from tandem.contract.types import CanonicalWeight, QFormat, WeightKind
from tandem.errors import LayoutError, OpUnsupported

Tensor = torch.Tensor
BF16, I32 = torch.bfloat16, torch.int32
FULL, SMALL = 1.1, 4096  # a plan is right to a tenth, beside what is filled up to whole registers


def draw(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def whole(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(5)).to(I32)


def planned(module: Any, op: str, *arguments: Any) -> Any:
    """The op's result, once its plan has said what it then does."""
    (plan,) = module.PLAN[op](EMULATED, *arguments)
    with counted() as launches:
        result = module.OPS[op](*arguments)
    (one,) = launches
    assert (plan.kind, plan.blocks) == (one.kind, one.blocks)
    assert one.distinct_read <= FULL * plan.read and plan.written == one.written
    assert one.ub <= FULL * plan.ub + SMALL and plan.ub <= FULL * one.ub + SMALL
    return result


def same(have: Tensor, want: Tensor) -> bool:
    """Bit for bit."""
    return have.dtype is want.dtype and torch.equal(have.view(torch.uint8), want.contiguous().view(torch.uint8))


@pytest.mark.parametrize(
    ("shape", "rows", "dtype"),
    [((9, 70001), 5, torch.uint8), ((300, 5120), 70, BF16), ((5, 7), 9000, torch.float32), ((4, 3, 5), 6, torch.int64)],
)
def test_rows_by_index(ascend: Backend, shape: tuple[int, ...], rows: int, dtype: torch.dtype) -> None:
    x = whole(0, 200, *shape).to(dtype)
    index = whole(0, shape[0], rows)
    assert same(planned(gather_rows, "gather_rows", x, index), x[index.long()])
    index[1::3] = -1
    expected = OP_TABLE["gather_rows"].reference(x, index)
    assert same(gather_rows.gather_rows(x, index), expected)


@pytest.mark.parametrize(("places", "width"), [(9, 70001), (300, 5120), (70, 3)])
def test_rows_to_their_places(ascend: Backend, places: int, width: int) -> None:
    x, rows = whole(0, 200, places, width), places - 2
    index = torch.randperm(places - 1, generator=torch.Generator().manual_seed(1))[:rows].to(I32)
    values, expected = whole(200, 400, rows, width), x.clone()
    expected[index.long()] = values
    planned(scatter_rows, "scatter_rows", x, index, values)
    assert same(x, expected)
    index[::2] = -1
    scatter_rows.scatter_rows(x, index, values + 1)
    expected[index[1::2].long()] = values[1::2] + 1
    assert same(x[:-1], expected[:-1])


@pytest.mark.parametrize(("rows", "width"), [(2, 40000), (70, 5120)])
def test_embed(ascend: Backend, rows: int, width: int) -> None:
    table, ids = draw(50, width), whole(0, 50, rows)
    packed = ascend.pack_weight(WeightKind.EMBED, CanonicalWeight(table, None, QFormat.BF16), (50, width))
    assert same(planned(embed, "embed", ids, packed), table[ids.long()])
    override = torch.randn((5, width), generator=torch.Generator().manual_seed(2))
    index = whole(-1, 5, rows)
    given = torch.where((index >= 0)[:, None], override[index.long()].to(BF16), table[ids.long()])
    assert same(embed.embed(ids, packed, override, index), given)
    assert same(embed.embed(ids, packed, override.to(BF16), index), given)


@pytest.mark.parametrize(("rows", "m", "width"), [(2, 4, 5120), (70, 4, 72), (2, 3, 70000), (3, 1, 33), (2, 9, 5120)])
def test_streams_of_a_row_and_their_mean(ascend: Backend, rows: int, m: int, width: int) -> None:
    x, trunk = draw(rows, width), draw(rows, m, width)
    assert same(planned(hc_expand, "hc_expand", x, m), x[:, None].repeat(1, m, 1))
    assert same(planned(hc_mean, "hc_mean", trunk), OP_TABLE["hc_mean"].reference(trunk))


@pytest.mark.parametrize(
    ("rows", "count", "block"), [(3, 5000, 8), (1, 2048, 8), (5, 257, 1), (9, 100, 3), (2, 70, 100), (70, 33, 7)]
)
def test_pool_expand(ascend: Backend, rows: int, count: int, block: int) -> None:
    blocks = whole(-1, 3000, rows, count).sort(1).values
    lens = whole(0, 3000 * block, rows)
    expected = OP_TABLE["pool_expand"].reference(blocks, block, lens)
    assert same(planned(pool_expand, "pool_expand", blocks, block, lens), expected)


@pytest.mark.parametrize(
    ("rows", "width", "block"),
    [(3, 5000, 8), (5, 257, 1), (9, 1000, 2), (2, 70000, 4), (2, 4097, 64), (70, 333, 16), (1, 300000, 8)],
)
def test_block_max(ascend: Backend, rows: int, width: int, block: int) -> None:
    scores = draw(rows, width)
    chance = torch.rand((rows, width), generator=torch.Generator().manual_seed(4))
    scores[chance < 0.01], scores[chance > 0.99] = float("nan"), float("inf")
    lens = whole(0, width + 1, rows)
    lens[0] = width
    scores = scores.masked_fill(torch.arange(width) >= lens[:, None], float("-inf"))
    expected = OP_TABLE["block_max"].reference(scores, lens, block)
    assert same(block_max.block_max(scores, lens, block), expected)
    planned(block_max, "block_max", scores, torch.full_like(lens, width), block)


def test_blocks_that_are_no_power_of_two_are_refused(ascend: Backend) -> None:
    with pytest.raises(LayoutError, match="powers of two"):
        block_max.block_max(draw(2, 30), whole(1, 30, 2), 6)
    from tandem.contract.plan import Plan

    with pytest.raises(OpUnsupported, match="block=6"):
        Plan(ascend).bind("block_max", "test", block=6)


def test_a_block_that_does_not_fit_is_refused(ascend: Backend) -> None:
    with pytest.raises(LayoutError, match="smallest part"):
        pool_expand.pool_expand(whole(0, 9, 2, 5), 8000, whole(0, 9, 2))

"""The indexer's queries and scores on the emulated device at official widths, and the bits of rows and keys however
they are cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tandem.backends.ascend.kernels import index_query, index_scores, index_scores_at, quantize, rope
from tandem.contract.backend import Backend
from tandem.contract.cases import Draw, materialise
from tandem.contract.types import QFormat
from tandem.errors import LayoutError
from tandem.ops.index_scores import combine_heads
from tandem.ops.numerics import decode_rows

Tensor = torch.Tensor
BLOCKS, BLOCK = 60, 64  # of a request, and entries of one
ROWS = [0, 0, 0, 0, 0, 1, -1, 2, 2]  # requests, more of one than a tile has


def arguments(heads: int, dim: int) -> dict[str, Any]:
    draw = Draw(heads + dim)
    table = draw.block_table(3, BLOCKS)
    table[1, 3] = -1
    return {
        "q": draw.quantised(QFormat.MXFP4, len(ROWS), heads * dim),
        "w": draw.bf16(len(ROWS), heads),
        "cache": draw.cache(QFormat.MXFP4, dim, BLOCK, 3 * BLOCKS + 1),
        "table": table,
        "row_slot": torch.tensor(ROWS, dtype=torch.int32),
    }


def expected(given: dict[str, Any], entries: Tensor) -> Tensor:
    """Scores of entries [T, P]: products are exact, heads are added in order."""
    q, w, cache, row = given["q"], given["w"], given["cache"], given["row_slot"].long()
    query = decode_rows(q.data, q.scale, q.fmt).double().unflatten(-1, (w.shape[1], -1))
    blocks = given["table"][row.clamp_min(0).unsqueeze(-1), entries.clamp_min(0).long() // BLOCK]
    missing = (entries < 0) | (blocks < 0) | (row < 0).unsqueeze(-1)
    slots = torch.where(missing, 0, blocks * BLOCK + entries % BLOCK).long()
    held, codes = cache.data[slots], cache.layout.data_bytes
    keys = decode_rows(held[..., :codes].contiguous(), held[..., codes:].contiguous(), cache.layout.fmt).double()
    keys = torch.where(missing.unsqueeze(-1), torch.zeros_like(keys), keys)
    dots = torch.matmul(query, keys.transpose(1, 2)).transpose(0, 1)
    scores = combine_heads(dots, w.t().unsqueeze(-1))
    return torch.where(entries >= 0, scores, torch.full_like(scores, float("-inf")))


def paged(given: dict[str, Any], width: int) -> tuple[Tensor, Tensor]:
    """Numbers of visible entries, and the entries themselves."""
    lens = torch.tensor([0, 1, 257, width, 300, 700, 40, 256, width - 1], dtype=torch.int32).clamp_max(width)
    every = torch.arange(width, dtype=torch.int32).expand(len(ROWS), -1)
    return lens, torch.where(every < lens.unsqueeze(-1), every, -1)


@pytest.mark.parametrize(("heads", "dim"), [(32, 128), (5, 96), (64, 256), (1, 32), (100, 64)])
@pytest.mark.parametrize("width", [3700, 719, 31])
def test_scores(ascend: Backend, heads: int, dim: int, width: int) -> None:
    """Even and odd numbers of scale groups, tiles of four rows and of fewer, spans of a chunk and of several."""
    given = materialise(arguments(heads, dim), ascend, 0)
    lens, entries = paged(given, width)
    got = index_scores.index_scores(**given, lens=lens, width=width)
    assert (got == expected(given, entries)).all()


@pytest.mark.parametrize(("heads", "dim", "count"), [(32, 128, 600), (5, 96, 33), (64, 256, 257)])
def test_listed_scores(ascend: Backend, heads: int, dim: int, count: int) -> None:
    given = materialise(arguments(heads, dim), ascend, 0)
    entries = Draw(3).i32(-1, BLOCKS * BLOCK, len(ROWS), count)
    entries[0] = torch.arange(count, dtype=torch.int32)
    entries[1] = -1
    got = index_scores_at.index_scores_at(**given, entries=entries)
    assert (got == expected(given, entries)).all()


def test_bits_do_not_depend_on_how_rows_are_cut(ascend: Backend) -> None:
    """Rows together, alone, and as lists."""
    given = materialise(arguments(32, 128), ascend, 0)
    lens, entries = paged(given, 719)
    whole = index_scores.index_scores(**given, lens=lens, width=719).view(torch.int16)
    listed = index_scores_at.index_scores_at(**given, entries=entries).view(torch.int16)
    assert (listed == whole).all()
    q = given["q"]
    for row in range(len(ROWS)):
        alone = {name: given[name][row : row + 1].contiguous() for name in ("w", "row_slot")}
        alone["q"] = type(q)(q.data[row : row + 1], q.scale[row : row + 1], q.fmt, (1, q.shape[1]))
        one = index_scores.index_scores(**(given | alone), lens=lens[row : row + 1].clone(), width=719)
        assert (one.view(torch.int16) == whole[row]).all()


def test_a_key_that_is_not_a_number_spoils_its_own_score(ascend: Backend) -> None:
    given = materialise(arguments(32, 128), ascend, 0)
    slot = int(given["table"][2, 1]) * BLOCK + 7
    given["cache"].data[slot, given["cache"].layout.data_bytes] = 255
    lens, entries = paged(given, 719)
    got = index_scores.index_scores(**given, lens=lens, width=719)
    wanted = expected(given, entries)
    assert got[7:, BLOCK + 7].isnan().all()
    assert ((got == wanted) | (got.isnan() & wanted.isnan())).all()


def test_what_does_not_fit_is_refused(ascend: Backend) -> None:
    for heads, dim in ((300, 128), (4, 1024)):
        given = materialise(arguments(heads, dim), ascend, 0)
        lens, _ = paged(given, 31)
        with pytest.raises(LayoutError, match="does not fit"):
            index_scores.index_scores(**given, lens=lens, width=31)


@pytest.mark.parametrize(("heads", "dim", "turned", "rows"), [(32, 128, 64, 3), (3, 160, 160, 2), (1, 32, 2, 5)])
def test_queries_are_the_bytes_of_their_parts(ascend: Backend, heads: int, dim: int, turned: int, rows: int) -> None:
    draw = Draw(heads + dim)
    x, angles = draw.bf16(rows, heads * dim), draw.cos_sin(rows, turned)
    got = index_query.index_query(x, heads, angles)
    wanted = quantize.quantize(rope.rope(x.unflatten(-1, (heads, dim)), angles).flatten(-2), QFormat.MXFP4)
    assert (got.data == wanted.data).all()
    assert (got.scale == wanted.scale).all()

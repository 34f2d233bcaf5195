"""The CPU's kernels of the indexer: values against sums in float64 of what the bits mean, and bits however rows are
cut, whoever runs them and whatever the scales are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support import cpu_sets

from tandem.backends.cpu import loading
from tandem.backends.cpu.backend import CpuBackend
from tandem.backends.cpu.kernels import index_query, index_scores, index_scores_at
from tandem.contract.types import CacheKind, KVCache, KVLayout, QFormat, QTensor
from tandem.errors import LayoutError

if not loading.native_status().available:
    pytest.skip(f"no native kernels: {loading.native_status().reason}", allow_module_level=True)

Tensor = torch.Tensor
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
BLOCK, BLOCKS, REQUESTS = 20, 40, 3  # blocks that are no power of two, so that tiles lie in several
LENGTH = BLOCK * BLOCKS
# Scale bytes of keys and queries: all ways to a dot product.
SCALES = {
    "narrow": ((120, 122), (118, 120)),
    "apart": ((118, 123), (119, 123)),  # exact in f32
    "far-apart": ((100, 140), (110, 130)),
    "outside": ((1, 40), (200, 240)),
}


def codes_and_scales(rng: np.random.Generator, shape: tuple[int, ...], scales: tuple[int, int]) -> tuple[Any, Any]:
    codes = rng.integers(0, 256, (*shape[:-1], shape[-1] // 2), dtype=np.uint8)
    return codes, rng.integers(*scales, (*shape[:-1], shape[-1] // 32), dtype=np.uint8)


def arguments(rows: list[int], heads: int, dim: int, kind: str = "narrow", seed: int = 0) -> dict[str, Any]:
    """Rows of requests; every entry of the cache holds something."""
    rng = np.random.default_rng([seed, heads, dim])
    of_keys, of_queries = SCALES[kind]
    codes, scales = codes_and_scales(rng, (REQUESTS * BLOCKS * BLOCK + 1, dim), of_keys)
    layout = KVLayout(CacheKind.INDEX, QFormat.MXFP4, dim, BLOCK)
    cache = KVCache(layout, REQUESTS * BLOCKS, torch.from_numpy(np.concatenate((codes, scales), axis=1)))
    query, query_scales = codes_and_scales(rng, (len(rows), heads * dim), of_queries)
    order = rng.permutation(REQUESTS * BLOCKS).astype(np.int32).reshape(REQUESTS, BLOCKS)
    table = np.concatenate((order, np.full((1, BLOCKS), -1, dtype=np.int32)))
    table[1, 3] = -1
    weights = torch.from_numpy(rng.standard_normal((len(rows), heads)).astype(np.float32)).to(torch.bfloat16)
    return {
        "q": QTensor(torch.from_numpy(query), torch.from_numpy(query_scales), QFormat.MXFP4, (len(rows), heads * dim)),
        "w": weights,
        "cache": cache,
        "table": torch.from_numpy(table),
        "row_slot": torch.tensor(rows, dtype=torch.int32),
    }


def decoded(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """float64 values; scale byte 255 is NaN."""
    nibbles = np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:-1], -1)
    power = np.where(scales == 255, np.nan, 2.0 ** (scales.astype(np.float64) - 127))
    return VALUES[nibbles] * np.repeat(power, 32, axis=-1)


def expected(given: dict[str, Any], entries: np.ndarray) -> np.ndarray:
    """Scores f32 [T, P] before their rounding to bf16: exact dots rounded once, heads added in order."""
    cache, table, half = given["cache"], given["table"].numpy(), given["cache"].layout.dim // 2
    heads, rows = given["w"].shape[1], []
    for t, request in enumerate(given["row_slot"].tolist()):
        query = decoded(given["q"].data[t].numpy(), given["q"].scale[t].numpy()).reshape(heads, -1)
        block = table[request][np.maximum(entries[t], 0) // BLOCK] if request >= 0 else np.full(entries.shape[1], -1)
        bytes_ = cache.data.numpy()[np.maximum(block, 0) * BLOCK + entries[t] % BLOCK]
        keys = decoded(bytes_[:, :half], bytes_[:, half:])
        keys[(block < 0) | (entries[t] < 0)] = 0
        total = np.zeros(entries.shape[1], np.float32)
        with np.errstate(invalid="ignore"):
            dots = np.maximum((query @ keys.T).astype(np.float32), 0)
            for h in range(heads):
                total = total + np.float32(given["w"][t, h].item()) * dots[h]
        rows.append(np.where(entries[t] < 0, -np.inf, total))
    return np.stack(rows).astype(np.float32)


def check(got: Tensor, want: np.ndarray) -> None:
    rounded = torch.from_numpy(want).to(torch.bfloat16)
    assert ((got == rounded) | (got.isnan() & rounded.isnan())).all()


def bits(x: Tensor) -> Tensor:
    return x.view(torch.int16)


def paged(rows: int, width: int) -> tuple[Tensor, np.ndarray]:
    """Visible lengths of all kinds, and the entries that they mean."""
    lens = np.array([width, 1, 0, 64, 63, 65, width - 1, 17, 256, 300] * 7, dtype=np.int32)[:rows].clip(0, width)
    every = np.arange(width)[None, :].repeat(rows, axis=0)
    return torch.from_numpy(lens), np.where(every < lens[:, None], every, -1)


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize(("heads", "dim"), [(32, 128), (5, 96), (2, 32), (9, 256), (1, 1024)])
def test_scores(kind: str, heads: int, dim: int) -> None:
    rows = [0, 0, 0, 1, 1, -1, 2, 2, 2, 2]
    given = arguments(rows, heads, dim, kind)
    lens, entries = paged(len(rows), 391)
    check(index_scores.index_scores(**given, lens=lens, width=391), expected(given, entries))


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize(("heads", "dim"), [(32, 128), (5, 96)])
def test_scores_of_listed_entries(kind: str, heads: int, dim: int) -> None:
    given = arguments([2, 0, -1, 1], heads, dim, kind)
    entries = np.random.default_rng(1).integers(-1, LENGTH, (4, 333)).astype(np.int32)
    entries[0] = -1
    entries[1, 5:200] = -1
    check(index_scores_at.index_scores_at(**given, entries=torch.from_numpy(entries)), expected(given, entries))


@pytest.mark.parametrize("kind", ["narrow", "far-apart"])
def test_bits_do_not_depend_on_the_batch_or_on_threads(kind: str) -> None:
    rows = [0] * 20 + [1] + [2] * 43
    given, (lens, entries) = arguments(rows, 6, 64, kind), paged(64, LENGTH)
    with cpu_sets.threads(2):
        whole = bits(index_scores.index_scores(**given, lens=lens, width=LENGTH))
    listed = index_scores_at.index_scores_at(**given, entries=torch.from_numpy(entries.astype(np.int32)))
    assert (bits(listed) == whole).all()
    for count in (1, 2, 3, 15, 16, 17, 64):
        for first in {0, 64 - count}:
            part = slice(first, first + count)
            some = {name: given[name][part].contiguous() for name in ("w", "row_slot")}
            q = given["q"]
            some["q"] = QTensor(q.data[part], q.scale[part], q.fmt, (count, q.shape[1]))
            with cpu_sets.threads(1):
                got = index_scores.index_scores(**(given | some), lens=lens[part].contiguous(), width=LENGTH)
            assert (bits(got) == whole[part]).all()


@pytest.mark.parametrize("kind", SCALES)
def test_instruction_sets_agree(kind: str) -> None:
    given, (lens, entries) = arguments([0, 0, 1, 2], 7, 96, kind), paged(4, 391)
    listed, x = torch.from_numpy(entries.astype(np.int32)), torch.randn((4, 7 * 96)).to(torch.bfloat16)
    angles = torch.randn((4, 64))

    def results() -> list[Tensor]:
        q = index_query.index_query(x, 7, angles)
        scores = index_scores.index_scores(**given, lens=lens, width=391)
        return [bits(scores), bits(index_scores_at.index_scores_at(**given, entries=listed)), q.data, q.scale]

    want = results()
    for name in cpu_sets.SETS:
        with cpu_sets.using(name):
            assert all(torch.equal(a, b) for a, b in zip(results(), want, strict=True))


def test_what_is_not_a_number_spoils_its_own_scores() -> None:
    given, (lens, entries) = arguments([0, 0, 1], 4, 128), paged(3, 391)
    lens[:], entries = 391, np.arange(391)[None, :].repeat(3, axis=0)
    slot = int(given["table"][0, 2]) * BLOCK + 7
    given["cache"].data[slot, 64] = 255
    given["q"].scale[2, 9] = 255
    given["w"][1, 2] = float("inf")
    got = index_scores.index_scores(**given, lens=lens, width=391)
    assert got[0].isnan().nonzero().flatten().tolist() == [2 * BLOCK + 7]
    assert got[2].isnan().all()
    check(got[:2], expected(given, entries)[:2])


def test_weights_that_leave_f32_with_their_scales_are_exact() -> None:
    given = arguments([0, 1], 4, 64)
    given["w"][0], given["w"][1] = 3e38, 1e-38
    lens, entries = paged(2, 100)
    check(index_scores.index_scores(**given, lens=lens, width=100), expected(given, entries))


def test_entries_that_no_row_sees_are_not_read() -> None:
    given, (lens, _) = arguments([0, 0, 2], 4, 128), paged(3, 300)
    lens[:] = torch.tensor([90, 100, 33])
    want = index_scores.index_scores(**given, lens=lens, width=300)
    seen = torch.zeros(given["cache"].data.shape[0], dtype=torch.bool)
    for request, length in ((0, 100), (2, 33)):
        entry = torch.arange(length)
        seen[given["table"][request, entry // BLOCK].long() * BLOCK + entry % BLOCK] = True
    given["cache"].data[~seen] = 255
    assert (bits(index_scores.index_scores(**given, lens=lens, width=300)) == bits(want)).all()
    assert (want == float("-inf")).sum(1).tolist() == [210, 200, 267]


def test_columns_beyond_are_minus_infinity_and_nothing_else_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    given, (lens, _) = arguments([0, 1, 1], 4, 128), paged(3, 130)
    want = index_scores.index_scores(**given, lens=lens, width=130)
    guarded: list[Tensor] = []
    make = torch.empty

    def empty(shape: Any, dtype: torch.dtype) -> Tensor:
        count = int(np.prod(shape))
        guarded.append(make(count + 128, dtype=dtype).view(torch.uint8).fill_(0xA5).view(dtype))
        return guarded[-1][64 : 64 + count].view(shape)

    monkeypatch.setattr(torch, "empty", empty)
    got = index_scores.index_scores(**given, lens=lens, width=130)
    monkeypatch.undo()
    assert (bits(got) == bits(want)).all()
    for array in guarded:
        size = 64 * array.element_size()
        assert (array.view(torch.uint8)[:size] == 0xA5).all()
        assert (array.view(torch.uint8)[-size:] == 0xA5).all()


def test_nothing_to_score() -> None:
    given = arguments([], 4, 128)
    none = torch.empty(0, dtype=torch.int32)
    assert index_scores.index_scores(**given, lens=none, width=9).shape == (0, 9)
    assert index_scores_at.index_scores_at(**given, entries=none.view(0, 4)).shape == (0, 4)
    given = arguments([0], 4, 128)
    assert index_scores.index_scores(**given, lens=none.new_zeros(1), width=0).shape == (1, 0)


def test_what_does_not_fit_is_refused() -> None:
    given, (lens, _) = arguments([0, 1], 4, 128), paged(2, 300)
    wrong = dict(given, w=given["w"][:, :3].contiguous())
    with pytest.raises(LayoutError, match="do not fit the keys"):
        index_scores.index_scores(**wrong, lens=lens, width=300)
    table = given["table"].clone()
    table[0, 1] = REQUESTS * BLOCKS + 1
    with pytest.raises(LayoutError, match="refused"):
        index_scores.index_scores(**dict(given, table=table), lens=lens, width=300)
    with pytest.raises(LayoutError, match="refused"):
        index_scores_at.index_scores_at(**dict(given, table=table), entries=torch.full((2, 3), 25, dtype=torch.int32))
    slots = torch.tensor([0, 9], dtype=torch.int32)
    with pytest.raises(LayoutError, match="refused"):
        index_scores.index_scores(**dict(given, row_slot=slots), lens=lens, width=300)


@pytest.mark.parametrize(("rows", "heads", "dim", "turned"), [(1, 32, 128, 64), (17, 3, 160, 160), (5, 1, 32, 2)])
def test_queries_are_rotated_and_quantised(rows: int, heads: int, dim: int, turned: int) -> None:
    """Products and sums in f32, rounded to bf16; then the nearest code, of scales that are powers of two."""
    rng = torch.Generator().manual_seed(dim)
    x = (torch.randn((rows, heads * dim), generator=rng) * 5).to(torch.bfloat16)
    angles = torch.randn((rows, turned // 2), generator=rng)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    kept, turning = x.view(rows, heads, dim)[..., : dim - turned], x.view(rows, heads, dim)[..., dim - turned :]
    even, odd = turning[..., 0::2].float().numpy(), turning[..., 1::2].float().numpy()
    cos, sin = angles.cos().numpy()[:, None], angles.sin().numpy()[:, None]
    pairs = torch.from_numpy(np.stack((even * cos - odd * sin, even * sin + odd * cos), axis=-1)).to(torch.bfloat16)
    rotated = torch.cat((kept, pairs.flatten(-2)), dim=-1).double().numpy().reshape(rows, -1, 32)
    power = np.ceil(np.log2(np.abs(rotated).max(-1) / 6))
    power += np.abs(rotated).max(-1) > 6 * 2.0**power
    got = index_query.index_query(x, heads, cos_sin)
    assert (got.scale.numpy() == power + 127).all()
    distance = np.abs(np.abs(rotated / 2.0 ** power[..., None])[..., None] - VALUES[:8])
    best = distance.min(-1, keepdims=True)
    # Of two codes as near the even one is chosen.
    nearest = np.where(distance == best, np.arange(8) % 2, 9).argmin(-1)
    sign = np.where((rotated < 0) & (nearest > 0), 8, 0)
    codes = (nearest + sign).reshape(rows, -1)
    assert (got.data.numpy() == codes[:, 0::2] + 16 * codes[:, 1::2]).all()


def test_a_captured_step_gives_the_same_bits() -> None:
    backend, (lens, entries) = CpuBackend(True), paged(3, 391)
    given, listed = arguments([0, 1, 2], 4, 128), torch.from_numpy(entries.astype(np.int32))
    x, angles = torch.randn((3, 4 * 128)).to(torch.bfloat16), torch.randn((3, 64))
    kept: list[Tensor] = []

    def step() -> None:
        q = index_query.index_query(x, 4, angles)
        query = dict(given, q=q)
        kept[:] = [
            q.data,
            q.scale,
            index_scores.index_scores(**query, lens=lens, width=391),
            index_scores_at.index_scores_at(**query, entries=listed),
        ]

    with torch.inference_mode():
        graph = backend.capture(step)
        graph.replay()
        got = [array.view(torch.uint8).clone() for array in kept]
        step()
    assert all(torch.equal(a, b.view(torch.uint8)) for a, b in zip(got, kept, strict=True))

"""Cache entries, block tables and rotary positions on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.cpu_sets import SETS, using

from tandem.backends.cpu.backend import CpuBackend
from tandem.backends.cpu.kernels import (
    aux_entry_slots,
    aux_map_entries,
    aux_window_slots,
    kv_load,
    kv_store,
    kv_write,
    rms_norm,
    rope,
)
from tandem.contract.cases import Draw, materialise
from tandem.contract.types import CacheKind, KVCache, KVLayout, QFormat
from tandem.errors import TandemError
from tandem.ops.numerics import decode_rows, encode_rows

Tensor = torch.Tensor
ROWS = (1, 2, 3, 15, 16, 17, 64)
FORMATS = (QFormat.MXFP8, QFormat.MXFP4, QFormat.NVFP4)


@pytest.fixture(scope="module")
def cpu() -> CpuBackend:
    return CpuBackend(True)


def cache_of(fmt: QFormat, dim: int, entries: int, fill: int = 0xEE) -> KVCache:
    layout = KVLayout(CacheKind.MAIN, fmt, dim, entries)
    return KVCache(layout, 1, torch.full((entries + 1, layout.entry_bytes), fill, dtype=torch.uint8))


def same(a: Tensor, b: Tensor) -> bool:
    """The same bits."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_code_with_every_scale(fmt: QFormat) -> None:
    """As bf16, rounded where a scale makes values too small for it; the portable set gives the same bits."""
    layout = cache_of(fmt, 256 if fmt is QFormat.MXFP8 else 32, 256).layout
    cache = cache_of(fmt, layout.dim, 256)
    codes = torch.arange(256) if fmt is QFormat.MXFP8 else torch.arange(16) * 17
    cache.data[:256, : layout.data_bytes] = codes.to(torch.uint8)
    cache.data[:256, layout.data_bytes :] = torch.arange(256, dtype=torch.uint8)[:, None]
    slots = torch.arange(-1, 256, dtype=torch.int32).view(257, 1)
    got = kv_load.kv_load(cache, slots)
    assert got.shape == (257, 1, layout.dim) and (got[0] == 0).all()
    data, scales = cache.data[:256].split([layout.data_bytes, layout.scale_bytes], 1)
    wanted = decode_rows(data.contiguous(), scales.contiguous(), fmt).to(torch.bfloat16)
    assert torch.equal(got[1:, 0].isnan(), wanted.isnan())
    assert same(got[1:, 0].nan_to_num(0.0), wanted.nan_to_num(0.0))
    for name in SETS:
        with using(name):
            assert same(kv_load.kv_load(cache, slots), got)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("dim", [32, 96, 512])
def test_entries_hold_what_is_stored(fmt: QFormat, dim: int) -> None:
    """Slots in disorder; rows of negative slots go nowhere, other entries stay."""
    draw = Draw(dim)
    for rows in ROWS:
        x = draw.bf16(rows, dim, scale=3.0)
        x[0, 3], x[rows // 2, 5] = float("inf"), -0.0
        x[rows - 1, dim - 1] = float("nan")
        slots = torch.from_numpy(draw.rng.permutation(70)[:rows]).to(torch.int32)
        slots[2::3] = -2
        cache, wanted = cache_of(fmt, dim, 70), cache_of(fmt, dim, 70)
        kv_store.kv_store(x, cache, slots)
        for t, slot in enumerate(slots.tolist()):
            if slot >= 0:
                wanted.data[slot] = torch.cat(encode_rows(x[t], fmt), -1)
        assert torch.equal(cache.data, wanted.data)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("dim", "turned"), [(64, 16), (512, 64), (96, 96), (32, 2), (64, 0)])
def test_a_write_gives_the_bytes_of_its_parts(fmt: QFormat, dim: int, turned: int) -> None:
    draw = Draw(dim + turned)
    for rows in ROWS:
        x, weight, angles = draw.bf16(rows, dim), draw.f32(dim), draw.cos_sin(rows, turned)
        slots = torch.arange(rows, dtype=torch.int32).flip(0) - 1
        cache, wanted = cache_of(fmt, dim, 64), cache_of(fmt, dim, 64)
        got = kv_write.kv_write(x, weight, 1e-6, angles, cache, slots)
        normed = rms_norm.rms_norm(x, weight, 1e-6, False)[0]
        kv_store.kv_store(rope.rope(normed.unsqueeze(1), angles).squeeze(1), wanted, slots)
        assert same(got, normed)
        assert torch.equal(cache.data, wanted.data)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(("heads", "dim", "turned"), [(3, 40, 16), (1, 32, 32), (64, 512, 64), (2, 9, 6), (2, 70, 66)])
def test_rotated_values(heads: int, dim: int, turned: int, inverse: bool) -> None:
    """Complex numbers times e^(i angle); within the rounding to bf16 and of f32 sums."""
    draw = Draw(dim)
    for rows in ROWS:
        x, angles = draw.bf16(rows, heads, dim), draw.cos_sin(rows, turned)
        got = rope.rope(x, angles, inverse)
        assert same(got[..., : dim - turned], x[..., : dim - turned])
        wide = x[..., dim - turned :].double().numpy().reshape(rows, heads, turned // 2, 2)
        cos, sin = np.split(angles.double().numpy()[:, None], 2, axis=-1)
        wanted = (wide[..., 0] + 1j * wide[..., 1]) * (cos + 1j * (-sin if inverse else sin))
        flat = np.stack((wanted.real, wanted.imag), -1).reshape(rows, heads, turned)
        error = np.abs(got[..., dim - turned :].double().numpy() - flat)
        assert (error <= 2.0**-8 * np.abs(flat) + 2.0**-22 * np.abs(wide).max()).all()
        for name in SETS:
            with using(name):
                assert same(rope.rope(x, angles, inverse), got)
        assert all(same(rope.rope(x[t : t + 1], angles[t : t + 1], inverse), got[t : t + 1]) for t in range(rows))


def test_a_nan_turns_its_pair_only() -> None:
    x, angles = Draw(1).bf16(1, 1, 64), Draw(2).cos_sin(1, 64)
    x[0, 0, 7] = float("nan")
    assert rope.rope(x, angles)[0, 0].isnan().nonzero().flatten().tolist() == [6, 7]


def slot_of(table: list[list[int]], request: int, entry: int, size: int, wrap: bool) -> int:
    blocks = table[request]
    block = entry // size % len(blocks) if wrap else min(max(entry // size, 0), len(blocks) - 1)
    return -1 if blocks[block] < 0 else blocks[block] * size + entry % size


def tables(seed: int, columns: int) -> Tensor:
    table = Draw(seed).block_table(3, columns)
    table[1, columns // 2] = -1
    return table


@pytest.mark.parametrize(("size", "columns"), [(4, 8), (3, 5), (64, 3), (1, 40)])
def test_slots_one_by_one(size: int, columns: int) -> None:
    """Against a walk through the table in Python; sizes that are powers of two and that are not."""
    table = tables(size, columns)
    rows, draw = table.tolist(), Draw(columns)
    for count in ROWS:
        positions, slot = draw.i32(0, 3 * size * columns, count), draw.i32(-1, 3, count)
        first = torch.tensor([0, size + 1, -5, 0], dtype=torch.int32)
        pairs = list(zip(positions.tolist(), slot.tolist(), strict=True))
        for window in (1, 9, 2 * size):
            got = aux_window_slots.window_slots(positions, slot, table, first, size, window).tolist()
            for (position, request), row in zip(pairs, got, strict=True):
                read = range(position - window + 1, position + 1)
                lowest = max(int(first[request]), 0)
                there = [request >= 0 and p >= lowest for p in read]
                assert row == [
                    slot_of(rows, request, p, size, True) if t else -1 for p, t in zip(read, there, strict=True)
                ]
        for ratio in (1, 2, 3):
            for wrap in (False, True):
                got = aux_entry_slots.entry_slots(positions, slot, table, size, ratio, wrap).tolist()
                assert got == [
                    slot_of(rows, r, p // ratio, size, wrap) if r >= 0 and (p + 1) % ratio == 0 else -1
                    for p, r in pairs
                ]
        entries = draw.i32(-2, size * columns + 7, count, 11)
        got = aux_map_entries.map_entries(entries, slot, table, size).tolist()
        for request, numbers, row in zip(slot.tolist(), entries.tolist(), got, strict=True):
            assert row == [slot_of(rows, request, n, size, False) if n >= 0 and request >= 0 else -1 for n in numbers]


def refused(call: Callable[[], Any]) -> None:
    with pytest.raises(TandemError) as caught:
        call()
    assert all(caught.value.to_dict().values())


def test_bad_arguments_are_refused() -> None:
    """And nothing is written."""
    draw, cache = Draw(3), cache_of(QFormat.NVFP4, 64, 8)
    x, weight, angles = draw.bf16(2, 64), draw.f32(64), draw.cos_sin(2, 16)
    slots, beyond = (torch.tensor([1, n], dtype=torch.int32) for n in (2, 9))
    before, eps = cache.data.clone(), 1e-6
    for bad in (beyond, slots[:1], slots.long()):
        refused(lambda bad=bad: kv_store.kv_store(x, cache, bad))
        refused(lambda bad=bad: kv_write.kv_write(x, weight, eps, angles, cache, bad))
    refused(lambda: kv_load.kv_load(cache, beyond))
    refused(lambda: kv_store.kv_store(x[:, :32].contiguous(), cache, slots))
    refused(lambda: kv_write.kv_write(x, weight[:60], eps, angles, cache, slots))
    refused(lambda: kv_write.kv_write(x, weight, -1.0, angles, cache, slots))
    refused(lambda: kv_write.kv_write(x, weight, eps, angles[:1], cache, slots))
    refused(lambda: rope.rope(x.unsqueeze(1), angles[:1]))
    refused(lambda: rope.rope(x[:, None, :8].contiguous(), angles))
    assert torch.equal(cache.data, before)
    table, first, positions = tables(1, 8), torch.zeros(4, dtype=torch.int32), torch.tensor([3, 4], dtype=torch.int32)
    unknown = torch.tensor([0, 4], dtype=torch.int32)
    for slot in (unknown, slots[:1]):
        refused(lambda slot=slot: aux_window_slots.window_slots(positions, slot, table, first, 4, 9))
        refused(lambda slot=slot: aux_entry_slots.entry_slots(positions, slot, table, 4, 1, True))
        refused(lambda slot=slot: aux_map_entries.map_entries(positions[:, None], slot, table, 4))
    refused(lambda: aux_window_slots.window_slots(positions, slots, table, first[:2], 4, 9))
    refused(lambda: aux_entry_slots.entry_slots(positions, slots, table, 0, 1, True))


def test_captured_calls_give_the_same_bits(cpu: CpuBackend) -> None:
    draw = Draw(5)
    x, weight, angles = draw.bf16(3, 64), draw.f32(64), draw.cos_sin(3, 16)
    table, first = tables(1, 8), torch.zeros(4, dtype=torch.int32)
    positions, slot = torch.tensor([3, 9, 20], dtype=torch.int32), torch.tensor([0, 2, -1], dtype=torch.int32)
    cache = materialise(draw.cache(QFormat.MXFP8, 64, 4, 24), cpu, 0)

    def step() -> list[Tensor]:
        written = aux_entry_slots.entry_slots(positions, slot, table, 4, 1, True)
        read = aux_window_slots.window_slots(positions, slot, table, first, 4, 9)
        mapped = aux_map_entries.map_entries(positions.unsqueeze(1), slot, table, 4)
        normed = kv_write.kv_write(x, weight, 1e-6, angles, cache, written)
        kv_store.kv_store(x, cache, mapped.squeeze(1))
        return [written, read, mapped, normed, kv_load.kv_load(cache, read), rope.rope(x.unsqueeze(1), angles, True)]

    with torch.inference_mode():
        results: list[Tensor] = []
        graph = cpu.capture(lambda: results.extend(step()))
        x += 1.0
        positions += 5
        graph.replay()
        assert all(same(a, b) for a, b in zip(results, step(), strict=True))

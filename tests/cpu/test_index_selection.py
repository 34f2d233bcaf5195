"""The CPU's kernels that choose entries, and the small ones beside them, against sorts, loops and float64 written here;
and their bits however rows are cut and whoever runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import cpu_sets

from tandem.backends.cpu import loading
from tandem.backends.cpu.backend import CpuBackend
from tandem.backends.cpu.kernels import (
    aux_group_start,
    aux_visible,
    block_max,
    compress_update,
    dequantize,
    pool_expand,
    topk_index,
)
from tandem.contract.cases import step_rows
from tandem.contract.types import QFormat, QTensor, Rows
from tandem.errors import LayoutError

if not loading.native_status().available:
    pytest.skip(f"no native kernels: {loading.native_status().reason}", allow_module_level=True)

Tensor = torch.Tensor
ROWS = (1, 2, 3, 15, 16, 17, 64)


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.from_numpy((np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32))


def best(scores: Tensor, k: int) -> np.ndarray:
    """By a sort of (score descending, index ascending)."""
    out = np.full((scores.shape[0], k), -1, dtype=np.int32)
    for t, row in enumerate(scores.double().numpy()):
        allowed = np.nonzero(row > -np.inf)[0]  # NaN is not above
        chosen = np.sort(allowed[np.lexsort((allowed, -row[allowed]))][:k])
        out[t, : len(chosen)] = chosen
    return out


def hard_scores(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Rows of every kind: many ties, rising, falling, all equal, few numbers, both zeros."""
    scores = numbers(rows, width, seed=width, scale=3.0)
    scores[1::7] = scores[1::7].round()
    scores[2::7] = scores[2::7].sort(dim=1).values
    scores[3::7] = scores[3::7].sort(dim=1, descending=True).values
    scores[4::7] = -2.5
    scores[5::7, width // 50 :] = float("-inf")
    scores[6::7] = torch.where(scores[6::7] > 1, 0.0, -0.0)
    scores[::2, ::11], scores[::3, 5::13] = float("nan"), float("inf")
    return scores.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("width", "k"), [(1, 1), (33, 16), (1000, 512), (5003, 600), (40_000, 2000), (9, 40), (70, 70)]
)
def test_topk(dtype: torch.dtype, width: int, k: int) -> None:
    scores = hard_scores(15, width, dtype)
    assert (topk_index.topk_index(scores, k).numpy() == best(scores, k)).all()


@pytest.mark.parametrize("k", [1, 512, 3000])
def test_topk_of_a_row_in_parts(k: int) -> None:
    """The good ones in all parts, or in one; the bits whoever cuts the row."""
    scores = numbers(3, 100_000, scale=30.0).round()
    scores[1, 60_000:63_000] += 500
    scores[2].sort()
    scores = scores.to(torch.bfloat16)
    want = best(scores, k)
    for count in (1, 2, 5):
        with cpu_sets.threads(count):
            assert (topk_index.topk_index(scores, k).numpy() == want).all()
            for t in range(3):
                assert (topk_index.topk_index(scores[t : t + 1], k).numpy() == want[t]).all()


def test_topk_of_nothing() -> None:
    assert topk_index.topk_index(torch.empty((0, 5)), 3).shape == (0, 3)
    assert topk_index.topk_index(torch.empty((2, 0)), 3).tolist() == [[-1] * 3] * 2
    assert topk_index.topk_index(torch.zeros((2, 5)), 0).shape == (2, 0)


def block_scores(rows: int, width: int) -> tuple[Tensor, Tensor]:
    lens = torch.from_numpy(np.random.default_rng(width).integers(0, width + 1, rows, dtype=np.int32))
    lens[0] = width
    scores = hard_scores(rows, width, torch.bfloat16)
    return scores.masked_fill(torch.arange(width) >= lens.unsqueeze(-1), float("-inf")), lens


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("width", "block"), [(29, 8), (1024, 8), (70, 64), (5, 1), (700, 100), (3, 8)])
def test_block_max(rows: int, width: int, block: int) -> None:
    scores, lens = block_scores(rows, width)
    got = block_max.block_max(scores, lens, block)
    most = torch.finfo(torch.bfloat16).max
    for t in range(rows):
        last = (int(lens[t]) - 1) // block
        for b in range(-(-width // block)):
            some = [v for v in scores[t, b * block : (b + 1) * block].tolist() if v == v]
            want = min(max(some, default=-np.inf), most) if b < last else np.inf if b == last else -np.inf
            assert got[t, b] == (want if lens[t] > 0 else -np.inf)


def test_block_max_stays_in_its_row() -> None:
    """Longer visible lengths than there are scores, at the end of the last row."""
    scores = torch.zeros((2, 45), dtype=torch.bfloat16)
    scores[1] = 7.0
    assert block_max.block_max(scores, torch.tensor([99, 99], dtype=torch.int32), 8)[0].tolist() == [0.0] * 6


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("block", [1, 8, 33])
def test_pool_expand(rows: int, block: int) -> None:
    rng = np.random.default_rng(rows)
    blocks = np.sort(rng.integers(0, 50, (rows, 9)).astype(np.int32), axis=1)
    blocks[::2, 6:] = -1
    lens = rng.integers(0, 50 * block, rows, dtype=np.int32)
    got = pool_expand.pool_expand(torch.from_numpy(blocks), block, torch.from_numpy(lens)).numpy()
    entries = blocks[..., None].astype(np.int64) * block + np.arange(block)
    seen = (blocks[..., None] >= 0) & (entries < lens[:, None, None])
    assert (got == np.where(seen, entries, -1).reshape(rows, -1)).all()


@pytest.mark.parametrize("ratio", [1, 2, 3, 128])
def test_numbers_of_rows(ratio: int) -> None:
    positions = torch.tensor([0, 1, 2, 5, 127, 128, 65_535, 16_777_217, 2**31 - 2], dtype=torch.int32)
    slot = torch.tensor([0, 1, -1, 2, 3, 0, 0, 1, 2], dtype=torch.int32)
    lens, starts = aux_visible.visible(positions, slot, ratio), aux_group_start.group_start(positions, ratio)
    assert lens.tolist() == [0 if s < 0 else (p + 1) // ratio for p, s in zip(positions.tolist(), slot, strict=True)]
    assert starts.tolist() == [p - p % ratio for p in positions.tolist()]
    assert aux_visible.visible(positions[:0], slot[:0], ratio).shape == (0,)


@pytest.mark.parametrize(("fmt", "width"), [(QFormat.MXFP8, 96), (QFormat.MXFP4, 96), (QFormat.NVFP4, 48)])
@pytest.mark.parametrize("rows", [0, 1, 17])
def test_dequantize(fmt: QFormat, width: int, rows: int) -> None:
    rng = np.random.default_rng(width)
    codes = rng.integers(0, 256, (rows, width * fmt.bits // 8), dtype=np.uint8)
    scales = rng.integers(90, 120, (rows, width // fmt.group), dtype=np.uint8)
    got = dequantize.dequantize(QTensor(torch.from_numpy(codes), torch.from_numpy(scales), fmt, (rows, width)))
    byte = np.arange(256)
    small, normal = (byte & 7) * 2.0**-9, (1 + (byte & 7) / 8) * 2.0 ** ((byte >> 3 & 15) - 7.0)
    e4m3 = np.where(byte & 127 == 127, np.nan, np.where(byte >> 3 & 15, normal, small)) * np.where(byte > 127, -1, 1)
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6] + [0, -0.5, -1, -1.5, -2, -3, -4, -6])
    if fmt is QFormat.MXFP8:
        values = e4m3[codes]
    else:
        values = e2m1[np.stack((codes & 15, codes >> 4), axis=-1).reshape(rows, width)]
    power = e4m3[scales] if fmt is QFormat.NVFP4 else 2.0 ** (scales.astype(float) - 127)
    want = torch.from_numpy(values * power.repeat(fmt.group, axis=-1)).to(torch.bfloat16)
    assert ((got == want) | (got.isnan() & want.isnan())).all()


def compress_case(ratio: int, ring: int, width: int) -> tuple[Tensor, Tensor, Tensor, Rows]:
    rows = step_rows([(2, 5, 1), (-1, 0, 2), (0, 3, 40), (1, 0, 2), (3, 17, 3)])
    count = rows.slot.shape[0]
    value, gate = numbers(count, width, seed=1), numbers(count, width, seed=2, scale=4.0)
    return value, gate, numbers(5, ring, 2, width, seed=3), rows


def pooled(value: Tensor, gate: Tensor, state: Tensor, rows: Rows, ratio: int) -> tuple[np.ndarray, np.ndarray]:
    """Latents in float64, and the state after."""
    v, g, before, after = value.double().numpy(), gate.double().numpy(), state.double().numpy(), state.numpy().copy()
    latents, ring = np.zeros(v.shape), state.shape[1]
    for t in range(v.shape[0]):
        p, start, end, s = (int(x[t]) for x in (rows.positions, rows.chunk_start, rows.chunk_end, rows.slot))
        if s < 0:
            continue
        terms = []
        for back in range(ratio):
            held = before[s, (p - back) % ring]
            terms.append((g[t - back], v[t - back]) if t - back >= start else (held[0], held[1]))
        weights = np.exp(np.stack([a for a, _ in terms]) - np.max([a for a, _ in terms], axis=0))
        latents[t] = (weights * np.stack([b for _, b in terms])).sum(0) / weights.sum(0)
        if t >= end - ring:
            after[s, p % ring] = np.stack((gate[t].numpy(), value[t].numpy()))
    return latents, after


@pytest.mark.parametrize(("ratio", "ring", "width"), [(2, 2, 512), (2, 3, 40), (4, 7, 100), (8, 8, 1)])
def test_compress_update(ratio: int, ring: int, width: int) -> None:
    value, gate, state, rows = compress_case(ratio, ring, width)
    latents, after = pooled(value, gate, state, rows, ratio)
    with cpu_sets.threads(2):
        got = compress_update.compress_update(value, gate, state, rows, ratio)
    live = (rows.slot >= 0).numpy()
    want = torch.from_numpy(latents).to(torch.bfloat16).double()
    error = (got.double() - want).abs().numpy()
    size = np.maximum(np.abs(latents), 2.0**-3)  # terms cancel in f32
    assert (error[live] <= (size * 2.0**-7)[live]).all()
    assert (state[:4].numpy() == after[:4]).all()


def test_a_gate_that_is_not_a_number_spoils_its_own_channel() -> None:
    value, gate, state, rows = compress_case(2, 2, 40)
    gate[10, 3] = float("nan")
    got = compress_update.compress_update(value, gate, state, rows, 2)
    assert got.isnan().nonzero().tolist() == [[10, 3], [11, 3]]


def test_slots_that_are_not_there_are_refused() -> None:
    value, gate, state, rows = compress_case(2, 2, 40)
    rows.slot[4] = 5
    with pytest.raises(LayoutError, match="refused"):
        compress_update.compress_update(value, gate, state, rows, 2)


def calls(rows: int) -> dict[str, Callable[[], Tensor]]:
    """Ops of independent rows on the first rows of fixed inputs."""
    scores, lens = block_scores(64, 700)
    blocks = torch.from_numpy(np.random.default_rng(0).integers(-1, 99, (64, 30)).astype(np.int32))
    q = QTensor(torch.arange(64 * 32).view(64, 32).to(torch.uint8), torch.full((64, 2), 120, dtype=torch.uint8),
                QFormat.MXFP4, (64, 64))  # fmt: skip
    some, few, listed = scores[:rows].contiguous(), lens[:rows].contiguous(), blocks[:rows].contiguous()
    part = QTensor(q.data[:rows], q.scale[:rows], q.fmt, (rows, 64))
    return {
        "topk_index": lambda: topk_index.topk_index(some, 50),
        "block_max": lambda: block_max.block_max(some, few, 8),
        "pool_expand": lambda: pool_expand.pool_expand(listed, 8, few),
        "dequantize": lambda: dequantize.dequantize(part),
        "aux.visible": lambda: aux_visible.visible(few, few, 2),
        "aux.group_start": lambda: aux_group_start.group_start(few, 2),
    }


def raw(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("op", calls(1))
def test_bits_do_not_depend_on_the_batch_or_on_threads(op: str) -> None:
    with cpu_sets.threads(2):
        whole = raw(calls(64)[op]())
    for rows in ROWS:
        with cpu_sets.threads(1):
            got = raw(calls(rows)[op]()).view(rows, -1)
            assert torch.equal(got, whole.view(64, -1)[:rows])


def compressed(width: int) -> list[Tensor]:
    value, gate, state, rows = compress_case(2, 3, width)
    return [raw(compress_update.compress_update(value, gate, state, rows, 2)), raw(state)]


def test_instruction_sets_agree() -> None:
    want = {op: raw(call()) for op, call in calls(17).items()}
    latents, wide = compressed(70), topk_index.topk_index(hard_scores(15, 40_000, torch.float32), 700)
    for name in cpu_sets.SETS:
        with cpu_sets.using(name):
            assert all(torch.equal(raw(call()), want[op]) for op, call in calls(17).items())
            assert all(torch.equal(a, b) for a, b in zip(compressed(70), latents, strict=True))
            assert torch.equal(topk_index.topk_index(hard_scores(15, 40_000, torch.float32), 700), wide)


def test_nothing_is_written_beside_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and memory of their own lie between guards."""
    want = {op: raw(call()) for op, call in calls(3).items()}
    given, make, guarded = calls(3), torch.empty, []

    def empty(shape: Any, dtype: torch.dtype) -> Tensor:
        count = int(np.prod(shape))
        guarded.append(make(count + 128, dtype=dtype).view(torch.uint8).fill_(0xA5).view(dtype))
        return guarded[-1][64 : 64 + count].view(shape)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        got = {op: call() for op, call in given.items()}
    assert all(torch.equal(raw(got[op]), want[op]) for op in want)
    for array in guarded:
        edge = 64 * array.element_size()
        assert (array.view(torch.uint8)[:edge] == 0xA5).all()
        assert (array.view(torch.uint8)[-edge:] == 0xA5).all()


def test_a_captured_step_gives_the_same_bits() -> None:
    backend, given, kept = CpuBackend(True), calls(3), {}
    value, gate, state, rows = compress_case(2, 3, 70)
    before = state.clone()

    def step() -> None:
        kept.update({op: call() for op, call in given.items()})
        kept["compress_update"] = compress_update.compress_update(value, gate, state, rows, 2)

    with torch.inference_mode():
        graph = backend.capture(step)
        graph.replay()
        got, after = {op: raw(array).clone() for op, array in kept.items()}, state.clone()
        state.copy_(before)
        step()
    assert all(torch.equal(got[op], raw(array)) for op, array in kept.items())
    assert torch.equal(after, state)

"""The residual, Engram and embedding ops of the CPU against float64, or by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cpu.residual_cases import BACKEND, ROWS, bf16, hc_weights, normal, op, random_table
from torch import Tensor

from tandem.contract.types import HcMix, PackedWeight, QFormat, Rows, WeightKind
from tandem.errors import LayoutError

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
WIDTHS = (5, 16, 72, 530)


def wide(x: Tensor) -> np.ndarray:
    return x.to(torch.float64).numpy()


def close(got: Tensor, want: np.ndarray, size: np.ndarray) -> None:
    """bf16 within one rounding of the value, and what f32 loses in terms of this size."""
    error = np.abs(wide(got) - want)
    assert (error <= np.abs(want) * 2.0**-8 + size * 2.0**-20).all()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("m", (1, 3, 4, 8))
def test_streams(rows: int, width: int, m: int) -> None:
    y, trunk = bf16(rows, width, seed=rows), bf16(rows, m, width, seed=width)
    pre, post, comb = normal(rows, m, seed=1), normal(rows, m, seed=2), normal(rows, m, m, seed=3)
    terms = wide(comb)[..., None] * wide(trunk)[:, :, None, :]
    mine = (wide(post)[..., None] * wide(y)[:, None, :])[:, None]
    terms = np.concatenate((mine, terms), axis=1)
    close(op("hc_post")(y, trunk, post, comb), terms.sum(1), np.abs(terms).sum(1))
    terms = wide(trunk) * wide(pre)[..., None]
    close(op("hc_collapse")(trunk, pre), terms.sum(1), np.abs(terms).sum(1))
    close(op("hc_mean")(trunk), wide(trunk).mean(1), np.abs(wide(trunk)).mean(1))
    assert torch.equal(op("hc_expand")(y, m), torch.stack([y] * m, dim=1))


def test_nan_in_an_output_and_in_a_stream() -> None:
    y, trunk = bf16(3, 40, seed=1), bf16(3, 4, 40, seed=2)
    post, comb = normal(3, 4, seed=3), torch.zeros((3, 4, 4))
    y[0, 5] = trunk[2, 1, 39] = float("nan")
    got = op("hc_post")(y, trunk, post, comb)
    assert got[0, :, 5].isnan().all() and got[2, :, 39].isnan().all() and got.isnan().sum() == 8


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", (32, 96, 800))
def test_swiglu(rows: int, width: int) -> None:
    gate, up = bf16(rows, width, seed=rows, scale=4.0), bf16(rows, width, seed=width, scale=4.0)
    weight = normal(rows, seed=5)
    g = np.minimum(wide(gate), 3.0)
    value = g / (1 + np.exp(-g)) * np.clip(wide(up), -3.0, 3.0)
    for factor, w in ((1.0, None), (wide(weight)[:, None], weight)):
        q = op("swiglu_quant")(gate, up, 3.0, w)
        want = value * factor
        scale = np.repeat(np.exp2(q.scale.numpy().astype(float) - 127), 32, axis=1)
        got = wide(q.data.view(torch.float8_e4m3fn).to(torch.float32)) * scale
        assert (np.abs(got - want) <= np.abs(want) * 2.0**-4 * 1.0001 + scale * 2.0**-10 * 1.0001).all()
        top = np.abs(want).reshape(rows, -1, 32).max(2)
        legal = np.exp2(np.ceil(np.log2(np.maximum(top, 1e-4) / 448.0)))
        assert (np.exp2(q.scale.numpy().astype(float) - 127) == legal).all()


def test_swiglu_special_values() -> None:
    """NaN loses its group alone; infinities are clamped before the product."""
    gate, up = bf16(2, 96, seed=1), bf16(2, 96, seed=2)
    clean = op("swiglu_quant")(gate, up, 10.0, None)
    gate[0, 40] = float("nan")
    gate[1, :3], up[1, :3] = float("inf"), torch.tensor([float("inf"), float("-inf"), 1.0])
    q = op("swiglu_quant")(gate, up, 10.0, None)
    assert q.scale[0, 1] == 255 and (q.data[0, 32:64] == 0x7F).all()
    assert torch.equal(q.data[0, 64:], clean.data[0, 64:]) and torch.equal(q.data[0, :32], clean.data[0, :32])
    scale = 2.0 ** (int(q.scale[1, 0]) - 127)
    value = q.data[1, :3].view(torch.float8_e4m3fn).to(torch.float32) * scale
    torch.testing.assert_close(value, torch.tensor([100.0, -100.0, 10.0]), rtol=2.0**-4, atol=0.0)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", (7, 48, 530))
def test_engram_gate(rows: int, width: int) -> None:
    m, eps = 4, 1e-3
    trunk, kv, qk = bf16(rows, m, width, seed=rows), bf16(rows, (m + 1) * width, seed=2), normal(m, width, seed=3)
    roles = (torch.arange(rows) % 3 == 1).to(torch.int32)
    h, k = wide(trunk), wide(kv).reshape(rows, m + 1, width)
    size = np.sqrt((h * h).mean(-1) + eps) * np.sqrt((k[:, :m] ** 2).mean(-1) + eps) * width**0.5
    s = (h * wide(qk) * k[:, :m]).sum(-1) / size
    gate = 1 / (1 + np.exp(-np.copysign(np.sqrt(np.maximum(np.abs(s), 1e-6)), s)))
    want = h + gate[..., None] * k[:, m:]
    got = op("engram_gate")(trunk, kv, qk, eps, roles)
    text = roles.numpy() == 0
    # The root of a score near zero makes much of its error: by 1 / sqrt(1e-6) / 4 at most.
    near = np.abs(h) + np.abs(k[:, m:]) * 2.0**10
    close(got[roles == 0], want[text], near[text])
    assert torch.equal(got[roles != 0], trunk[roles != 0])


def test_engram_gate_without_a_score() -> None:
    """g = sigmoid(1e-3) where stream or keys are zero, and of the sign that a score of zero has."""
    trunk, kv = torch.zeros((1, 2, 32), dtype=torch.bfloat16), bf16(1, 96, seed=1)
    got = op("engram_gate")(trunk, kv, normal(2, 32, seed=2), 1e-20, torch.zeros(1, dtype=torch.int32))
    value = (kv[0, 64:].to(torch.float32) / (1 + np.exp(-1e-3))).to(torch.bfloat16)
    assert torch.equal(got[0, 0], value) and torch.equal(got[0, 1], value)


@pytest.mark.parametrize("rows", ROWS)
def test_engram_hash(rows: int) -> None:
    rng = np.random.default_rng(rows)
    context, multipliers = rng.integers(0, 2**17, (rows, 4)), rng.integers(2**40, 2**45, 4) * 2 + 1
    primes, offsets = rng.integers(1, 2**30, (3, 8)), rng.integers(0, 2**40, (3, 8))
    want = []
    for row in context.tolist():
        mixed, hashed = row[0] * int(multipliers[0]), []
        for s in range(1, 4):
            mixed ^= row[s] * int(multipliers[s])
            hashed += [mixed % int(p) + int(o) for p, o in zip(primes[s - 1], offsets[s - 1], strict=True)]
        want.append(hashed)
    constants = (torch.from_numpy(a) for a in (multipliers, primes, offsets))
    assert op("engram_hash")(torch.from_numpy(context).to(torch.int32), *constants).tolist() == want


def rows_of(*rows: tuple[int, int, int, int, int, int]) -> Rows:
    """Rows from (id, position, slot, chunk start, chunk end, role)."""
    return Rows(*(torch.tensor(column, dtype=torch.int32) for column in zip(*rows, strict=True)))


def test_engram_context_by_hand() -> None:
    """A chunk of three tokens with an image before the last, a decode row, a padding row."""
    vocabulary = torch.tensor([10, 11, 12, 13, 14], dtype=torch.int32)
    history = torch.tensor([[50, 51, 52, 53], [60, -1, 62, 63], [70, 71, 72, 73]], dtype=torch.int32)
    rows = rows_of((1, 2, 0, 0, 3, 0), (2, 3, 0, 0, 3, 1), (3, 4, 0, 0, 3, 0), (4, 7, 1, 3, 4, 0), (0, 0, -1, 4, 5, 0))
    context = op("engram_context")(rows, vocabulary, history, 9, 4)
    assert context[:4].tolist() == [[11, 51, 50, 9], [9, 9, 9, 9], [13, 9, 9, 9], [14, 62, 9, 9]]
    assert context[4].tolist() == [10, 9, 9, 9]
    assert history.tolist() == [[13, 51, 11, -1], [60, -1, 62, 14], [70, 71, 72, 73]]


def test_engram_context_keeps_the_last_rows_of_a_chunk_longer_than_the_history() -> None:
    """Early rows read places that late ones write."""
    history = torch.tensor([[5, 6], [0, 0]], dtype=torch.int32)
    rows = rows_of(*((i, 2 + i, 0, 0, 5, 0) for i in range(5)))
    context = op("engram_context")(rows, torch.arange(20, 25, dtype=torch.int32), history, 9, 3)
    assert context.tolist() == [[20, 6, 5], [21, 20, 6], [22, 21, 20], [23, 22, 21], [24, 23, 22]]
    assert history.tolist() == [[24, 23], [0, 0]]


@pytest.mark.parametrize("rows", ROWS)
def test_engram_gather(rows: int) -> None:
    stored = random_table(QFormat.MXFP8, 50, 96, seed=1)
    table = BACKEND.pack_weight(WeightKind.ENGRAM, stored, (50, 96))
    index = torch.from_numpy(np.random.default_rng(rows).integers(100, 150, (rows, 6)))
    q = op("engram_gather")(index, table, 100)
    assert stored.scale is not None and q.shape == (rows, 576)
    assert torch.equal(q.data, stored.data[index - 100].flatten(1))
    assert torch.equal(q.scale, stored.scale[index - 100].flatten(1))


def decoded(table: Any) -> np.ndarray:
    """Values of a weight from the meaning of its bits."""
    if table.scale is None:
        return wide(table.data)
    codes, scales = table.data.numpy(), table.scale.numpy().astype(int)
    if table.fmt.bits == 8:
        values = wide(table.data.view(torch.float8_e4m3fn).to(torch.float32))
    else:
        nibbles = np.stack((codes & 15, codes >> 4), axis=-1).reshape(len(codes), -1)
        values = np.array(E2M1)[nibbles & 7] * np.where(nibbles > 7, -1, 1)
    if table.fmt is QFormat.NVFP4:
        size = wide(table.scale.view(torch.float8_e4m3fn).to(torch.float32))
    else:
        size = np.exp2(scales - 127.0)
    spread = np.repeat(size, table.fmt.group, axis=1)[:, : values.shape[1]]
    if table.fmt is QFormat.FP8_BLOCK32:
        spread = np.repeat(spread, 32, axis=0)[: len(values)]
    return values * spread


@pytest.mark.parametrize("fmt", list(QFormat))
@pytest.mark.parametrize("rows", (1, 17))
def test_embed(fmt: QFormat, rows: int) -> None:
    width = 1000 if fmt in (QFormat.BF16, QFormat.F32, QFormat.FP8_BLOCK32) else 1056
    stored = random_table(fmt, 70, width, seed=1)
    table = BACKEND.pack_weight(WeightKind.EMBED, stored, (70, width))
    ids = torch.from_numpy(np.random.default_rng(rows).integers(0, 70, rows).astype(np.int32))
    ids[0] = 69
    want = torch.from_numpy(decoded(stored)[ids.numpy()]).to(torch.float32).to(torch.bfloat16)
    assert torch.equal(op("embed")(ids, table), want)
    index = torch.arange(rows, dtype=torch.int32) % 4 - 1
    for given in (normal(3, width, seed=2), bf16(3, width, seed=3)):
        replaced = torch.where((index >= 0)[:, None], given.to(torch.bfloat16)[index.clamp_min(0)], want)
        assert torch.equal(op("embed")(ids, table, given, index), replaced)


def words(fmt: QFormat = QFormat.BF16) -> PackedWeight:
    return BACKEND.pack_weight(WeightKind.EMBED, random_table(fmt, 8, 64, seed=1), (8, 64))


def test_bad_indexes_are_refused() -> None:
    """Nothing is read from beyond a table, and nothing is written."""
    table = BACKEND.pack_weight(WeightKind.ENGRAM, random_table(QFormat.MXFP8, 5, 32, seed=1), (5, 32))
    for row in (9, 15, -1):
        with pytest.raises(LayoutError):
            op("engram_gather")(torch.tensor([[10, row]]), table, 10)
    given = normal(2, 64, seed=1)
    for token, index in ((8, -1), (-1, -1), (0, 2)):
        with pytest.raises(LayoutError):
            op("embed")(
                torch.tensor([token], dtype=torch.int32), words(), given, torch.tensor([index], dtype=torch.int32)
            )
    assert op("embed")(torch.tensor([99], dtype=torch.int32), words(), given, torch.zeros(1, dtype=torch.int32)).any()
    history, vocabulary = torch.zeros((2, 4), dtype=torch.int32), torch.zeros(5, dtype=torch.int32)
    for bad in ((5, 0, 0, 0, 1, 0), (0, 0, 2, 0, 1, 0), (0, 0, 0, -1, 1, 0)):
        with pytest.raises(LayoutError):
            op("engram_context")(rows_of(bad), vocabulary, history, 9, 3)
    assert not history.any()
    zero = torch.zeros((1, 1), dtype=torch.int64)  # a prime of zero
    with pytest.raises(LayoutError):
        op("engram_hash")(torch.ones((1, 2), dtype=torch.int32), torch.ones(2, dtype=torch.int64), zero, zero)


def test_wrong_shapes_and_weights_are_refused() -> None:
    y, trunk, pre, comb = bf16(2, 64, seed=1), bf16(2, 4, 64, seed=2), normal(2, 4, seed=3), normal(2, 4, 4, seed=4)
    weights, norm, mix = hc_weights(4, 64, seed=5), normal(64, seed=6), HcMix(pre, pre, comb)
    refused = (
        lambda: op("hc_mix")(trunk, hc_weights(4, 32, seed=5)),
        lambda: op("hc_mix")(trunk, hc_weights(4, 64, seed=5, base=normal(23, seed=1))),
        lambda: op("hc_mix")(trunk, hc_weights(4, 64, seed=5, iters=0)),
        lambda: op("hc_mix")(trunk, hc_weights(4, 64, seed=5, scale=torch.ones(3, dtype=torch.float64))),
        lambda: op("hc_mix")(trunk.to(torch.float32), weights),
        lambda: op("hc_mix")(bf16(2, 9, 64, seed=1), hc_weights(9, 64, seed=1)),
        lambda: op("hc_enter")(trunk, pre[:1], weights, norm),
        lambda: op("hc_enter")(trunk, pre, weights, norm[:32]),
        lambda: op("hc_enter")(bf16(2, 4, 40, seed=1), pre, hc_weights(4, 40, seed=1), normal(40, seed=1)),
        lambda: op("hc_step")(y[:1], trunk, mix, weights, norm),
        lambda: op("hc_post")(y, trunk, pre, comb[:1]),
        lambda: op("hc_collapse")(trunk, comb),
        lambda: op("swiglu_quant")(y, y[:, :32], 1.0, None),
        lambda: op("swiglu_quant")(y, y, -1.0, None),
        lambda: op("engram_gate")(trunk, y, normal(4, 64, seed=1), 1e-6, torch.zeros(2, dtype=torch.int32)),
        lambda: op("engram_gather")(torch.zeros((1, 1), dtype=torch.int64), words(), 0),
        lambda: op("embed")(torch.zeros(1, dtype=torch.int64), words()),
        lambda: op("embed")(torch.zeros(1, dtype=torch.int32), words(), y[:, :32], torch.zeros(1, dtype=torch.int32)),
    )
    for call in refused:
        with pytest.raises(LayoutError) as raised:
            call()
        assert raised.value.fix

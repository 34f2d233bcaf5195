"""The attention sub-layer against a second derivation: one query at a time, rotation by complex numbers."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from torch import Tensor

from .arith import Arith
from .attention import Attention, Shared
from .build import build_tiny
from .choices import Choices
from .quant import Weights, fp8_values, index_values, main_kv_values
from .settings import read_settings

CONFIG, TENSORS, _ = build_tiny(2)
ARITH = Arith(torch.float64, None)
WEIGHTS = Weights(TENSORS, ARITH)
TOKENS, WINDOW, TOPK, HEADS, WIDTH = 45, 8, 16, 4, 64


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def fp8_product(x: Tensor, name: str) -> Tensor:
    return bf16(WEIGHTS.get(name) @ fp8_values(x))


def normed(x: Tensor, name: str) -> Tensor:
    return bf16(x / x.square().mean().sqrt() * TENSORS[name].double())


def frequency(pair: int, ratio: int) -> float:
    """Sixteen rotated channels. Compressed layers: YaRN between pairs 0 and 2, to a quarter."""
    if ratio == 0:
        return float(10000.0 ** (-pair / 8))
    return float(160000.0 ** (-pair / 8)) * (1 - min(pair / 2, 1) * 0.75)


def turned(x: Tensor, position: int, ratio: int, sign: int = 1) -> Tensor:
    """Rotate the last 16 entries of a vector, pair by pair."""
    result, start = x.clone(), len(x) - 16
    for pair in range(8):
        a = start + 2 * pair
        angle = sign * position * frequency(pair, ratio)
        z = complex(x[a], x[a + 1]) * cmath.exp(1j * angle)
        result[a], result[a + 1] = z.real, z.imag
    return bf16(result)


def naive_entries(x: Tensor, layer: int, ratio: int) -> tuple[list[Tensor], list[Tensor]]:
    """Compressed keys and index keys."""
    p = f"layers.{layer}.attn"
    keys, index_keys = [], []
    for j in range(TOKENS // ratio):
        rows = [x[j * ratio + r] for r in range(ratio)]
        values = [WEIGHTS.get(f"{p}.compressor.wkv.weight") @ row for row in rows]
        mixed = values[0]
        if ratio == 2:
            first, second = (WEIGHTS.get(f"{p}.compressor.wgate.weight") @ row for row in rows)
            share = 1 / (1 + torch.exp(second - first))
            mixed = share * values[0] + (1 - share) * values[1]
        latent = normed(bf16(mixed), f"{p}.compressor.norm.weight")
        keys.append(main_kv_values(turned(latent, j * ratio, ratio)))
        index_key = normed(bf16(WEIGHTS.get(f"{p}.indexer.wk.weight") @ latent), f"{p}.indexer.k_norm.weight")
        index_keys.append(index_values(turned(index_key, j * ratio, ratio)))
    return keys, index_keys


def naive_selection(x: Tensor, qa: Tensor, p: str, t: int, ratio: int, index_keys: list[Tensor]) -> list[int]:
    query = fp8_product(qa, f"{p}.indexer.wq_b.weight")
    heads = [index_values(turned(q, t, ratio)) for q in query.split(32)]
    weight = bf16(WEIGHTS.get(f"{p}.indexer.weights_proj.weight") @ x)
    scores = []
    for j in range((t + 1) // ratio):
        total = sum(float(weight[h]) * max(float(heads[h] @ index_keys[j]), 0.0) for h in range(2))
        scores.append(float(bf16(torch.tensor(total, dtype=torch.float64))))
    return sorted(sorted(range(len(scores)), key=lambda j: (-scores[j], j))[:TOPK])


def naive(x: Tensor, layer: int, ratio: int, entries: tuple[list[Tensor], list[Tensor]] | None) -> Tensor:
    p = f"layers.{layer}.attn"
    own = [normed(fp8_product(row, f"{p}.wkv.weight"), f"{p}.kv_norm.weight") for row in x]
    own = [fp8_values(turned(k, i, ratio)) for i, k in enumerate(own)]
    outputs = []
    for t in range(TOKENS):
        qa = normed(fp8_product(x[t], f"{p}.wq_a.weight"), f"{p}.q_norm.weight")
        keys = own[max(0, t - WINDOW + 1) : t + 1]
        if entries is not None:
            chosen = naive_selection(x[t], qa, p, t, ratio, entries[1])
            keys = keys + [entries[0][j] for j in chosen]
        heads = []
        for h, q in enumerate(fp8_product(qa, f"{p}.wq_b.weight").split(WIDTH)):
            q = turned(q, t, ratio)
            powers = [math.exp(float(q @ k) / 8.0) for k in keys]
            bottom = sum(powers) + math.exp(float(TENSORS[f"{p}.attn_sink"][h]))
            top = sum(
                (w * k for w, k in zip(powers, keys, strict=True)), torch.zeros(WIDTH, dtype=torch.float64)
            )
            heads.append(turned(bf16(top / bottom), t, ratio, sign=-1))
        down = WEIGHTS.get(f"{p}.wo_a.weight")
        low = [
            bf16(down[32 * g : 32 * g + 32] @ fp8_values(torch.cat(heads[2 * g : 2 * g + 2]))) for g in (0, 1)
        ]
        outputs.append(fp8_product(torch.cat(low), f"{p}.wo_b.weight"))
    return torch.stack(outputs)


def inputs(seed: int) -> Tensor:
    return torch.randn(TOKENS, 128, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize(("layer", "ratio"), [(0, 0), (1, 2)])
def test_attention_agrees_with_a_second_derivation(layer: int, ratio: int) -> None:
    x = inputs(layer)
    entries = naive_entries(x.double(), layer, ratio) if ratio else None
    expected = naive(x.double(), layer, ratio, entries)
    result = Attention(read_settings(CONFIG), WEIGHTS, ARITH)(layer, x, Shared(Choices()))
    assert torch.equal(result.double(), expected)


def test_ratio_one_entries_agree_and_later_layers_reuse_them() -> None:
    """Layer 4 makes the decoder's keys; layer 5 has its own query and window but the keys and choice of 4."""
    x, y = inputs(4), inputs(5)
    keys, index_keys = naive_entries(x.double(), 4, 1)
    attention, shared = Attention(read_settings(CONFIG), WEIGHTS, ARITH), Shared(Choices())
    attention(4, x, shared)
    assert torch.equal(shared.keys[4], torch.stack(keys))
    assert torch.equal(shared.index_keys[4], torch.stack(index_keys))
    picked = shared.made.indices[4]
    qa = [
        normed(fp8_product(r, "layers.4.attn.wq_a.weight"), "layers.4.attn.q_norm.weight") for r in x.double()
    ]
    for t in range(TOKENS):
        assert picked[t] == naive_selection(x[t].double(), qa[t], "layers.4.attn", t, 1, index_keys)
    reused = attention(5, y, shared)
    assert set(shared.keys) == set(shared.selected) == {4}
    other = Shared(Choices(), keys=shared.keys, selected={4: torch.zeros_like(shared.selected[4])})
    window_only = naive(y.double(), 5, 1, None)
    assert torch.equal(attention(5, y, other).double(), window_only)
    assert not torch.equal(reused.double(), window_only)

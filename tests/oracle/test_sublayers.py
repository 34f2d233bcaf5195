"""MoE and Engram as wholes against a second derivation, token by token."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .arith import Arith
from .attention import Shared
from .build import build_tiny
from .choices import Choices
from .engram import Engram
from .moe import Moe
from .quant import Weights, fp8_values
from .settings import read_settings

CONFIG, TENSORS, COMPRESSED = build_tiny(3)
SETTINGS = read_settings(CONFIG)
ARITH = Arith(torch.float64, None)
WEIGHTS = Weights(TENSORS, ARITH)


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def naive_expert(x: Tensor, name: str, share: float) -> Tensor:
    gate, up = (bf16(WEIGHTS.get(f"{name}.{w}.weight") @ fp8_values(x)) for w in ("w1", "w3"))
    inner = torch.stack([g / (1 + torch.exp(-g)) * u * share for g, u in zip(gate, up, strict=True)])
    return bf16(WEIGHTS.get(f"{name}.w2.weight") @ fp8_values(inner))


def test_moe_agrees_with_a_second_derivation() -> None:
    """No gate or up value of this input reaches the clamp, which has a test of its own."""
    x = torch.randn(24, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    roles = torch.tensor([0, 2] * 12)
    result = Moe(SETTINGS, WEIGHTS, ARITH)(2, x, roles, Shared(Choices()))
    for t in range(24):
        row = x[t].double()
        logits = [float(w @ row) for w in WEIGHTS.get("layers.2.ffn.gate.weight")]
        scores = [math.sqrt(math.log(1 + math.exp(z))) for z in logits]
        bias = TENSORS[f"layers.2.ffn.gate.{'bias_vl' if t % 2 else 'bias'}"].tolist()
        best = sorted(range(8), key=lambda e: -(scores[e] + bias[e]))[:2]
        total = sum(scores[e] for e in best)
        routed = [naive_expert(row, f"layers.2.ffn.experts.{e}", scores[e] / total * 1.5) for e in best]
        expected = bf16(routed[0] + routed[1] + naive_expert(row, "layers.2.ffn.shared_experts", 1.0))
        assert torch.equal(result[t].double(), expected)


def test_engram_agrees_with_a_second_derivation() -> None:
    """Four keys, then the value; every stream has its own gate; the table has one segment per head."""
    ids = [40, 41, 70, 71, 200, 9]
    trunk = torch.randn(6, 4, 128, generator=torch.Generator().manual_seed(2)).bfloat16()
    result = Engram(SETTINGS, WEIGHTS, ARITH, COMPRESSED).apply(2, trunk, ids, [0] * 6)
    sizes = [[131, 137], [139, 149], [151, 157]]
    drawn = np.random.default_rng(2 * 10007).integers(0, (2**63 - 1) // 230 // 2, size=4, dtype=np.int64)
    factors = [2 * int(v) + 1 for v in drawn]
    table = TENSORS["layers.2.engram.embed.weight"].double()
    exponent = TENSORS["layers.2.engram.embed.scale"].view(torch.uint8).double() - 127
    for t in range(6):
        back = [int(COMPRESSED[ids[t - s]]) if t >= s else int(COMPRESSED[2]) for s in range(4)]
        mixed, rows, offset = back[0] * factors[0], [], 0
        for s in (1, 2, 3):
            mixed ^= back[s] * factors[s]
            for size in sizes[s - 1]:
                rows.append(offset + mixed % size)
                offset += size
        looked_up = torch.cat([table[r] * 2.0 ** float(exponent[r, 0]) for r in rows])
        kv = bf16(WEIGHTS.get("layers.2.engram.wkv.weight") @ looked_up)
        value = kv[512:]
        for j in range(4):
            h, key = trunk[t, j].double(), kv[128 * j : 128 * j + 128]
            q, k = (TENSORS[f"layers.2.engram.{w}_weight"][j].double() for w in "qk")
            lengths = h.square().mean().sqrt() * key.square().mean().sqrt()
            similarity = float((h * q * k * key).sum() / lengths) / math.sqrt(128)
            g = 1 / (1 + math.exp(-math.copysign(math.sqrt(abs(similarity)), similarity)))
            assert torch.equal(result[t, j].double(), bf16(h + g * value))

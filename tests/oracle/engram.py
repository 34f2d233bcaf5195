"""Engram: hashed n-gram rows added to the trunk through a gate."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .arith import Arith
from .quant import Weights, dequantize_rows
from .settings import Settings


def _is_prime(n: int) -> bool:
    if n < 4 or n % 2 == 0:
        return n in (2, 3)
    return all(n % d for d in range(3, int(n**0.5) + 2, 2))


def hash_sizes(settings: Settings) -> dict[int, list[int]]:
    """Per Engram layer the table size of every (n-gram, head) in order; no prime serves twice."""
    seen: set[int] = set()
    result: dict[int, list[int]] = {}
    for layer in settings.engram_layers:
        sizes = []
        for _ in range(2, settings.engram_max_ngram + 1):
            candidate = settings.engram_vocab_size
            for _ in range(settings.engram_heads):
                while candidate in seen or not _is_prime(candidate):
                    candidate += 1
                seen.add(candidate)
                sizes.append(candidate)
        result[layer] = sizes
    return result


def multipliers(settings: Settings, layer: int) -> np.ndarray:
    """Odd int64 factors of the hash; entry s belongs to the s-th predecessor."""
    bound = max(1, (np.iinfo(np.int64).max // settings.engram_compressed) // 2)
    rng = np.random.default_rng(10007 * layer)
    return rng.integers(0, bound, size=settings.engram_max_ngram, dtype=np.int64) * 2 + 1


def look_back(settings: Settings, compressed: np.ndarray, ids: list[int], roles: list[int]) -> np.ndarray:
    """int64 [T, n]: compressed ids of a token and its predecessors; pad from the first obstacle on."""
    n = settings.engram_max_ngram
    result = np.full((len(ids), n), compressed[settings.engram_pad], dtype=np.int64)
    for position in range(len(ids)):
        for s in range(n):
            if position - s < 0 or roles[position - s] != 0:
                break
            token = ids[position - s]
            if not 0 <= token < len(compressed):
                raise ValueError(f"token {token} at position {position - s} is not in the tokenizer")
            result[position, s] = compressed[token]
    return result


def table_rows(history: np.ndarray, factors: np.ndarray, sizes: list[int], heads: int) -> np.ndarray:
    """int64 [T, (n-1)*heads]: row numbers in the layer's table, segments laid out one after the other."""
    hashed = history[:, 0] * factors[0]
    rows, offset = [], 0
    for s in range(1, history.shape[1]):
        hashed = hashed ^ (history[:, s] * factors[s])
        for size in sizes[(s - 1) * heads : s * heads]:
            rows.append(hashed % size + offset)
            offset += size
    return np.stack(rows, axis=1)


def gate(arith: Arith, h: Tensor, key: Tensor, product: Tensor, eps: float) -> Tensor:
    """Sigmoid of the signed root of the similarity of h and key [T, D]; product is q*k weight [D]."""
    similarity = arith.total(arith.wide(h) * product * arith.wide(key))
    similarity = similarity * arith.inverse_rms(h, eps) * arith.inverse_rms(key, eps) * h.shape[-1] ** -0.5
    return torch.sigmoid(torch.copysign(similarity.abs().clamp(min=1e-6).sqrt(), similarity))


class Engram:
    """All Engram layers of one model."""

    def __init__(self, settings: Settings, weights: Weights, arith: Arith, compressed: np.ndarray) -> None:
        if settings.engram_layers and len(np.unique(compressed)) != settings.engram_compressed:
            raise ValueError(
                f"the tokenizer gives {len(np.unique(compressed))} compressed ids, "
                f"the config says {settings.engram_compressed}"
            )
        self._settings, self._weights, self._arith, self._compressed = settings, weights, arith, compressed
        self._sizes = hash_sizes(settings)
        if tuple(sum(s) for s in self._sizes.values()) != settings.engram_rows:
            raise ValueError(f"engram_num_embeddings {settings.engram_rows} are not the sums of the primes")

    def rows(self, layer: int, ids: list[int], roles: list[int]) -> np.ndarray:
        history = look_back(self._settings, self._compressed, ids, roles)
        factors = multipliers(self._settings, layer)
        return table_rows(history, factors, self._sizes[layer], self._settings.engram_heads)

    def apply(self, layer: int, trunk: Tensor, ids: list[int], roles: list[int]) -> Tensor:
        """The trunk [T, m, D] with the gated value added to each stream of each text token."""
        arith, weights, m = self._arith, self._weights, self._settings.hc_mult
        prefix = f"layers.{layer}.engram"
        rows = torch.from_numpy(self.rows(layer, ids, roles))
        table, scale = weights.raw(f"{prefix}.embed.weight"), weights.raw(f"{prefix}.embed.scale")
        picked = table.view(torch.uint8)[rows].view(torch.float8_e4m3fn)
        looked_up = dequantize_rows(picked, scale.view(torch.uint8)[rows]).flatten(1)
        # The stored fp8 rows feed the product as they are; quantising them anew is not part of the model.
        projected = arith.bf16(arith.linear(looked_up, weights.get(f"{prefix}.wkv.weight")))
        projected = projected.view(len(ids), m + 1, -1)
        value = arith.wide(projected[:, m])
        product = weights.get(f"{prefix}.q_weight") * weights.get(f"{prefix}.k_weight")
        streams = []
        for j in range(m):
            g = gate(arith, trunk[:, j], projected[:, j], product[j], self._settings.norm_eps)
            streams.append(arith.bf16(arith.wide(trunk[:, j]) + g * value))
        is_text = (torch.tensor(roles) == 0)[:, None, None]
        return torch.where(is_text, torch.stack(streams, dim=1), trunk)

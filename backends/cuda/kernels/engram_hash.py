"""`engram_hash`: 64-bit integer hashes, a program per block of rows."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
ROWS = 32


@triton.jit
def _engram_hash(
    context,
    multipliers,
    primes,
    offsets,
    hashed,
    rows,
    N: tl.constexpr,
    HEADS: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """ROWS rows and all heads; a row's longer n-grams go on from its shorter ones."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = tl.arange(0, PADDED)[None, :]
    live, used = row < rows, head < HEADS
    mixed = tl.load(context + row * N, mask=live, other=0).to(tl.int64) * tl.load(multipliers)
    for s in tl.static_range(1, N):
        token = tl.load(context + row * N + s, mask=live, other=0).to(tl.int64)
        mixed = mixed ^ (token * tl.load(multipliers + s))
        place = (s - 1) * HEADS + head
        prime = tl.load(primes + place, mask=used, other=1)
        value = mixed[:, None] % prime + tl.load(offsets + place, mask=used, other=0)
        tl.store(hashed + row[:, None] * ((N - 1) * HEADS) + place, value, mask=live[:, None] & used)


def engram_hash(context: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """See core/ops/engram_hash.py."""
    rows, n = context.shape
    heads = primes.shape[1]
    hashed = torch.empty((rows, (n - 1) * heads), dtype=torch.int64, device=context.device)
    launch(
        _engram_hash,
        (-(-rows // ROWS),),
        *(context, multipliers, primes, offsets, hashed, rows),
        **{"N": n, "HEADS": heads, "PADDED": triton.next_power_of_2(heads), "ROWS": ROWS, "num_warps": 4},
    )
    return hashed


def _traffic(context: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> tuple[int, int]:
    """Contexts are read once; the constants stay in the cache."""
    constants = 8 * (multipliers.numel() + primes.numel() + offsets.numel())
    return 4 * context.numel() + constants, 8 * context.shape[0] * primes.numel()


OPS: dict[str, Any] = {"engram_hash": engram_hash}
TRAFFIC: dict[str, Any] = {"engram_hash": _traffic}

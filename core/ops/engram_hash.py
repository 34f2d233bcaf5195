"""`engram_hash`: n-gram contexts to table rows.

Args: context[T,n] i32, multipliers[n] i64, primes[n-1,N] i64, offsets[n-1,N] i64 -> rows[T,(n-1)*N] i64

Reads context int32 [T, n], multipliers int64 [n], primes and offsets int64 [n - 1, heads]. Returns int64 [T,
(n - 1) * heads], ordered by (n-gram length, head): with r_s = c_0 M_0 xor ... xor c_s M_s (all non-negative
in int64), row = r_s mod prime + offset.  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("engram_hash", classes={"rows": "X"}, attrs=("n", "heads"))
def engram_hash(context: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    products = context.to(torch.int64) * multipliers
    mixed = products[:, 0]
    rows = []
    for s in range(1, context.shape[1]):
        mixed = mixed ^ products[:, s]
        rows.append(mixed.unsqueeze(-1).remainder(primes[s - 1]) + offsets[s - 1])
    return torch.cat(rows, dim=1)


@case("engram_hash", "large-products", ROWS)
def _large(seed: int, rows: int) -> dict[str, Any]:
    """Products close to 2^63."""
    draw = Draw(seed)
    multipliers = torch.from_numpy(draw.rng.integers(2**40, 2**45, 4)) * 2 + 1
    primes = torch.tensor([[101, 103], [107, 109], [113, 127]])
    offsets = torch.tensor([[0, 101], [204, 311], [420, 533]])
    context = draw.i32(0, 2**17, rows, 4)
    context[0, 1:] = 2**17
    return {"context": context, "multipliers": multipliers, "primes": primes, "offsets": offsets}

"""`hc_expand`: copy the embedding into all residual streams.

Args: x[T,H] bf16, m -> [T,m,H] bf16

Reads x bf16 [T, H]; returns bf16 [T, m, H].  Class X.  Source: hyper-connection trunk initialisation.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("hc_expand", classes={"trunk": "X"}, attrs=("m",))
def hc_expand(x: Tensor, m: int) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    return x.unsqueeze(1).repeat(1, m, 1)


@case("hc_expand", "random", ROWS)
def _random(seed: int, rows: int) -> dict[str, Any]:
    return {"x": Draw(seed).bf16(rows, 64), "m": 4}

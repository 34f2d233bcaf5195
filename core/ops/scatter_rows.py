"""`scatter_rows`: write rows of an array by index.

Reads values [N, ...] and index int32 [N] (distinct where >= 0); writes x[index[i]] = values[i].  Index -1 goes to the last
row of x, which state arrays keep as scratch.  Class X.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op

Tensor = torch.Tensor


@op("scatter_rows", classes={"x": "X"})
def scatter_rows(x: Tensor, index: Tensor, values: Tensor) -> None:
    """Plain-torch reference; see the module docstring."""
    x[index.to(torch.int64)] = values

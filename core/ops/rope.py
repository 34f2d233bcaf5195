"""`rope`: rotate the last rd dims of each head, interleaved pairs.

Args: x[T,h,d] bf16, cos_sin[T,rd] f32, inverse (False) -> [T,h,d] bf16: last rd dims rotated, interleaved pairs

Reads x bf16 [T, h, d], cos_sin f32 [T, rd] (cos of the rd/2 angles, then sin), inverse.
Returns bf16 [T, h, d]; dims before d - rd are copied.  f32 products and sum, rounded once.  Class U(1).
`inverse` rotates back (conjugate), as the attention output needs.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("rope", classes={"y": "U(1)"}, attrs=("dim", "rope_dim"))
def rope(x: Tensor, cos_sin: Tensor, inverse: bool = False) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    half = cos_sin.shape[-1] // 2
    cos, sin = cos_sin[:, None, :half], cos_sin[:, None, half:]
    keep = x.shape[-1] - 2 * half
    pairs = x[..., keep:].to(torch.float32).unflatten(-1, (half, 2))
    even, odd = pairs[..., 0], pairs[..., 1]
    if inverse:
        sin = -sin
    rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.cat((x[..., :keep], rotated.to(x.dtype)), dim=-1)


@case("rope", "forward", ROWS)
def _forward(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {"x": draw.bf16(rows, 3, 40), "cos_sin": draw.cos_sin(rows, 16)}


@case("rope", "inverse", ROWS)
def _inverse(seed: int, rows: int) -> dict[str, Any]:
    return _forward(seed, rows) | {"inverse": True}


@case("rope", "all-dims-one-head")
def _whole(seed: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {"x": draw.bf16(7, 1, 32), "cos_sin": draw.cos_sin(7, 32)}


@case("rope", "inverse-of-one-head")
def _whole_inverse(seed: int) -> dict[str, Any]:
    return _whole(seed) | {"inverse": True}


@case("rope", "several-tiles")
def _many(seed: int) -> dict[str, Any]:
    """Rows of several tiles, the last one not full, and heads that lie in two."""
    draw = Draw(seed)
    return {"x": draw.bf16(3, 7, 40), "cos_sin": draw.cos_sin(3, 16)}

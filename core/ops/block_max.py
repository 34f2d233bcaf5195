"""`block_max`: score of each block of b consecutive entries, for the candidate pool.

Args: scores[T,S] bf16, lens[T] i32, block (b) -> [T,ceil(S/b)] bf16; last visible block +inf, invisible -inf

Reads scores bf16 [T, S] (-inf where invisible), lens int32 [T], b.  Returns bf16 [T, ceil(S / b)]: the block
maximum, clamped to the largest finite bf16; +inf for the block that holds the last visible entry; -inf for
blocks with none. NaN counts as -inf.  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("block_max", classes={"blocks": "X"}, attrs=("block",))
def block_max(scores: Tensor, lens: Tensor, block: int) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    low = float("-inf")
    clean = torch.where(torch.isnan(scores), torch.full_like(scores, low), scores)
    padded = torch.nn.functional.pad(clean, (0, -scores.shape[1] % block), value=low)
    best = padded.unflatten(-1, (-1, block)).amax(-1).clamp_max(torch.finfo(torch.bfloat16).max)
    index = torch.arange(best.shape[1], device=scores.device, dtype=torch.int32)
    last = torch.div(lens - 1, block, rounding_mode="floor").unsqueeze(-1)
    best = torch.where(index > last, torch.full_like(best, low), best)
    return torch.where((index == last) & (lens > 0).unsqueeze(-1), torch.full_like(best, float("inf")), best)


@case("block_max", "part-of-a-block", ROWS)
def _part(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    lens = draw.i32(0, 30, rows)
    scores = draw.bf16(rows, 29).masked_fill(torch.arange(29) >= lens.unsqueeze(-1), float("-inf"))
    return {"scores": scores, "lens": lens, "block": 8}


@case("block_max", "nan-infinities-and-nothing-visible")
def _special(seed: int) -> dict[str, Any]:
    arguments = _part(seed, 5)
    arguments["lens"] = torch.tensor([29, 24, 0, 9, 29], dtype=torch.int32)
    hidden = torch.arange(29) >= arguments["lens"].unsqueeze(-1)
    arguments["scores"] = Draw(seed).bf16(5, 29).masked_fill(hidden, float("-inf"))
    arguments["scores"][0, 3] = float("nan")
    arguments["scores"][0, 8:16] = float("nan")
    arguments["scores"][4, 2] = float("inf")
    arguments["scores"][4, 8:16] = float("-inf")
    return arguments

"""`mask_logits`: forbid tokens by a bit mask, in place.

Args: logits[N,V] f32, bits[N,ceil(V/32)] i32 -> None; -inf in place where the bit is 0

Reads bits int32 [R, ceil(V / 32)]: bit v % 32 (least significant first) of word v // 32 belongs to token v;
bits past V are ignored.  Writes logits f32 [R, V]: -inf where the bit is 0, whatever was there (NaN too);
the rest keeps its bits.  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import case, op
from tandem.ops.sample import normal_logits

Tensor = torch.Tensor


@op("mask_logits", classes={"logits": "X"})
def mask_logits(logits: Tensor, bits: Tensor) -> None:
    """Plain-torch reference; see the module docstring."""
    shifts = torch.arange(32, device=logits.device, dtype=torch.int32)
    allowed = ((bits.unsqueeze(-1) >> shifts) & 1).flatten(1)[:, : logits.shape[1]]
    logits.masked_fill_(allowed == 0, float("-inf"))


@case("mask_logits", "random")
def random(seed: int) -> dict[str, Any]:
    """A vocabulary that ends inside a word; all 32 bits are used, the sign bit too."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, (4, 4), generator=generator).to(torch.int32)
    return {"logits": normal_logits(seed, 4, 101), "bits": bits}


@case("mask_logits", "all_and_none")
def all_and_none(seed: int) -> dict[str, Any]:
    """One row passes untouched, NaN included; one is forbidden throughout, NaN included."""
    logits = normal_logits(seed, 2, 64)
    logits[:, 9] = float("nan")
    return {"logits": logits, "bits": torch.tensor([[-1, -1], [0, 0]], dtype=torch.int32)}

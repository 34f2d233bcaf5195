"""`spec_verify`: see csrc/cpu/ops/spec_verify.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require, rows_of

Tensor = torch.Tensor


def spec_verify(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
    forced: Tensor,
    drafts: Tensor,
    proposal: Tensor,
    draft_row: Tensor,
    coupled: bool,
    filtered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See core/ops/spec_verify.py."""
    (rows, vocab), known = logits.shape, drafts.shape[0]
    one = (rows,)
    numbers = (temperature, top_p, top_k, min_p, seed, position, forced)
    require("spec_verify", *((array, one) for array in (*numbers, draft_row)), (proposal, (known, vocab)))
    line, stride = rows_of(logits)
    token, accepted = temporary.empty(one, dtype=torch.int32), temporary.empty(one, dtype=torch.int32)
    raw, logprob = temporary.empty(one, dtype=torch.float32), temporary.empty(one, dtype=torch.float32)
    arrays = (line, *numbers, drafts, proposal, draft_row, token, accepted, raw, logprob)
    native.run("spec_verify", *arrays, rows, vocab, known, stride, int(coupled), int(filtered))
    return token, accepted, raw, logprob


OPS: dict[str, Any] = {"spec_verify": spec_verify}

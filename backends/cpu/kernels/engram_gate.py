"""`engram_gate`: see csrc/cpu/ops/engram_gate.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require

Tensor = torch.Tensor


def engram_gate(trunk: Tensor, kv: Tensor, qk: Tensor, eps: float, roles: Tensor) -> Tensor:
    """See core/ops/engram_gate.py."""
    rows, m, width = trunk.shape
    require("engram_gate", kv=(kv, (rows, (m + 1) * width)), qk=(qk, (m, width)), roles=(roles, (rows,)))
    updated = temporary.empty((rows, m, width), dtype=torch.bfloat16)
    native.run("engram_gate", trunk.contiguous(), kv.contiguous(), qk, roles, updated, rows, m, width, eps)
    return updated


OPS: dict[str, Any] = {"engram_gate": engram_gate}

"""`mask_logits`: see csrc/ascend/mask_logits.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.accelerator.strided import with_stride
from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def mask_logits(logits: Tensor, bits: Tensor) -> None:
    """See core/ops/mask_logits.py."""
    rows, vocab = logits.shape
    line, stride = with_stride(logits)
    native.run("mask_logits", line, bits, rows, vocab, stride)


def _plan(device: Device, logits: Tensor, bits: Tensor) -> list[Plan]:
    """Every token banned, which is the most."""
    rows, vocab = logits.shape
    return _grid.plan(device, rows * bits.shape[1] * 32, bits.numel() * 4, rows * vocab * 4)


OPS: dict[str, Any] = {"mask_logits": mask_logits}
PLAN: dict[str, Any] = {"mask_logits": _plan}

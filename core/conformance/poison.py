"""Makes fresh memory hold junk, as memory on a device does."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ALLOCATIONS = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}


def fill(tensor: torch.Tensor, poison: int) -> None:
    """Set every byte of a fresh tensor."""
    if tensor.dtype is torch.bool:
        tensor.fill_(bool(poison & 1))
    elif tensor.is_contiguous():
        tensor.view(torch.uint8).fill_(poison) if tensor.dim() else tensor.view(1).view(torch.uint8).fill_(poison)


class PoisonMode(TorchDispatchMode):
    """While active, memory that torch hands out uninitialised holds the byte ``poison``."""

    def __init__(self, poison: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._poison = poison

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in ALLOCATIONS:
            fill(result, self._poison)
        return result

"""Which output an input is: dataflow by identity of memory, without a look at the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tandem.contract.types import QTensor
from tandem.parity.records import View
from tandem.parity.values import digest

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class _Made:
    """An output: where it lies, and whose it is."""

    record: int
    path: str
    tensor: Tensor  # kept, so that its memory is given to no other tensor while it can still be read
    lasting: bool


class Flow:
    """Remembers outputs while their memory lives, and finds inputs among them.

    Two tensors are the same where they share memory.  A backend whose tensors have none that torch knows of is
    known by the identity of its objects, and where it takes a view by the bits of floating-point values; integers
    written through a view (block tables, which the host decides) are then taken from the recording.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], list[_Made]] = {}
        self._by_bits: dict[tuple[str, torch.dtype], _Made] = {}

    def made(self, record: int, path: str, value: Tensor | QTensor, host: Tensor | QTensor, lasting: bool) -> None:
        """Note an output; ``lasting`` ones (written arguments) outlive the step."""
        tensor = _tensor(value)
        key = _memory(tensor)
        entry = _Made(record, path, tensor, lasting)
        self._made.setdefault(key, []).append(entry)
        if key[0] == "object" and isinstance(host, Tensor) and host.is_floating_point():
            self._by_bits[digest(host), host.dtype] = entry

    def find(self, value: Tensor | QTensor, host: Tensor | QTensor) -> tuple[int, str, View | None] | None:
        """Record and path of the newest output that an input is or lies in, and how it lies there."""
        tensor = _tensor(value)
        key = _memory(tensor)
        for made in reversed(self._made.get(key, ())):
            if made.tensor.dtype is not tensor.dtype:
                continue
            if key[0] == "object" or _where(made.tensor) == _where(tensor):
                return made.record, made.path, None
            view = _view(made.tensor, tensor)
            if view is not None and isinstance(value, Tensor):
                return made.record, made.path, view
        if key[0] == "object" and isinstance(host, Tensor) and host.is_floating_point():
            same = self._by_bits.get((digest(host), host.dtype))
            if same is not None:
                return same.record, same.path, View(0, tuple(host.shape), tuple(host.stride()))
        return None

    def end_step(self) -> None:
        """Forget what no later step can read."""
        kept = {key: [made for made in entries if made.lasting][-1:] for key, entries in self._made.items()}
        self._made = {key: entries for key, entries in kept.items() if entries}
        self._by_bits = {}


def _tensor(value: Any) -> Tensor:
    tensor: Tensor = value.data if isinstance(value, QTensor) else value
    return tensor


def _memory(tensor: Tensor) -> tuple[str, int]:
    # A backend's own tensor class may refuse to be asked through torch; what is asked here reads no value.
    with torch._C.DisableTorchFunctionSubclass():
        try:
            address = tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):
            address = 0
    return ("memory", address) if address else ("object", id(tensor))


def _where(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride())


def _view(whole: Tensor, part: Tensor) -> View | None:
    """How a part lies in a contiguous whole; None where it does not."""
    offset = int(part.storage_offset()) - int(whole.storage_offset())
    extent = 1 + sum((size - 1) * step for size, step in zip(part.shape, part.stride(), strict=True))
    if not whole.is_contiguous() or not part.numel() or offset < 0 or offset + extent > whole.numel():
        return None
    return View(offset, tuple(part.shape), tuple(part.stride()))

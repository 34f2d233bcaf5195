"""A backend on the host that has graphs: a capture records op calls and undoes them, a replay calls the ops again."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from support.checking import CheckingBackend, Recording, watch

from tandem.contract.backend import Graph
from tandem.contract.capabilities import Capabilities
from tandem.contract.opspec import OpFunction

Tensor = torch.Tensor


class Replay:
    """What a capture gives: the recorded calls, on the arrays and with the host values that they had."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.count = 0

    def replay(self) -> None:
        with torch.inference_mode():
            self._recording.replay_ops()
        self.count += 1


class GraphBackend(CheckingBackend):
    """As a device with graphs: nothing that a capture forbids passes, and a captured call has not run."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[Replay] = []
        self._saved: dict[int, tuple[Tensor, bytes]] | None = None

    @property
    def caps(self) -> Capabilities:
        return dataclasses.replace(super().caps, graphs=True)

    def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
        checked = super().wrap_op(op, function)

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._saved is not None and not self.running:
                for tensor in _tensors((args, tuple(kwargs.values()))):
                    self._save(tensor)
            return checked(*args, **kwargs)

        return run

    def _save(self, tensor: Tensor) -> None:
        """Keep the bytes of a storage as they were before the capture touched it."""
        assert self._saved is not None
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._saved:
            self._saved[storage.data_ptr()] = (tensor, ctypes.string_at(storage.data_ptr(), storage.nbytes()))

    def capture(self, function: Callable[[], Any]) -> Graph:
        self._saved = {}
        try:
            with watch(self) as recording:
                function()
            for address, (_, before) in self._saved.items():
                if ctypes.string_at(address, len(before)) != before:  # weights may lie in a file that is only read
                    ctypes.memmove(address, before, len(before))
        finally:
            self._saved = None
        self.graphs.append(Replay(recording))
        return self.graphs[-1]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))

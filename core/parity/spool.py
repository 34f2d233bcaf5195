"""Where a recording keeps tensors until it is known which of them the trace will hold."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
import torch

from tandem.parity.values import digest, raw_bytes

Tensor = torch.Tensor


class Spool:
    """Bytes by their SHA-256, each once, in a file that nobody else sees."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0

    def put(self, tensor: Tensor) -> str:
        """Keep the bytes of a host tensor; gives their SHA-256."""
        name = digest(tensor)
        if name not in self._places:
            data = raw_bytes(tensor).numpy()
            self._file.seek(self._end)
            self._file.write(data.data)
            self._places[name] = self._end, data.nbytes
            self._end += data.nbytes
        return name

    def get(self, name: str) -> Tensor:
        """The bytes of a name, uint8 [n]."""
        start, size = self._places[name]
        self._file.seek(start)
        return torch.from_numpy(np.frombuffer(self._file.read(size), dtype=np.uint8).copy())

    def size(self, name: str) -> int:
        """Bytes kept under a name."""
        return self._places[name][1]

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def references(tree: Any) -> Iterator[str]:
    """Names of all tensors that a record or value refers to."""
    if isinstance(tree, dict):
        if "t" in tree and "d" in tree:
            yield tree["t"]
        else:
            for item in tree.values():
                yield from references(item)
    elif isinstance(tree, list):
        for item in tree:
            yield from references(item)

"""Writes traces."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tandem.contract.opspec import CONTRACT_VERSION
from tandem.errors import TraceError
from tandem.parity.records import Call, Record, record_tree
from tandem.parity.shards import write_shard
from tandem.parity.trace import FORMAT, HEADER, INDEX, VERSION, Trace, header_digest
from tandem.parity.values import digest, encode, raw_bytes

Tensor = torch.Tensor
_SHARD_BYTES = 256 << 20


def require_empty(path: Path) -> None:
    """Refuse to write into a directory that holds something, or over a file.

    Raises:
        TraceError: it does.
    """
    why = "the directory is not empty" if path.is_dir() and any(path.iterdir()) else ""
    if why or (path.exists() and not path.is_dir()):
        raise TraceError("a trace cannot be written", where=str(path), why=why or "it is a file", fix="name another")


class TraceWriter:
    """Writes a trace; tensors go to disk as shards fill.

    Args:
        path: the directory; it must not exist, or be empty.
        header: what ran, as JSON values.
        base: a trace whose tensors are referred to and not stored again.
    Raises:
        TraceError: the directory holds something.
    """

    def __init__(self, path: str | Path, header: Mapping[str, Any], base: Trace | None = None) -> None:
        self.path, self._header, self._base = Path(path), dict(header), base
        require_empty(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, Any] = {}
        self._pending: dict[str, Tensor] = {}
        self._names: set[str] = set()
        self._pending_bytes = self.nbytes = 0
        self._index = (self.path / INDEX).open("wb")
        self._lines = hashlib.sha256()

    def put(self, tensor: Tensor) -> str:
        """Store the bytes of a host tensor, once; gives their SHA-256."""
        name = digest(tensor)
        if self.holds(name):
            return name
        self._names.add(name)
        self._pending[name] = raw_bytes(tensor).clone()
        self._pending_bytes += self._pending[name].numel()
        if self._pending_bytes >= _SHARD_BYTES:
            self._flush()
        return name

    def holds(self, name: str) -> bool:
        """Whether bytes of this hash were put, or are in the base."""
        return name in self._names or (self._base is not None and self._base.stored(name))

    def add(self, record: Record, call: Call, writers: Mapping[str, Tensor] | None = None) -> None:
        """Append a record; ids ascend."""
        self.add_tree(
            record_tree(record)
            | {
                "writers": {path: encode(tensor, self.put) for path, tensor in (writers or {}).items()},
                "inputs": {name: encode(value, self.put) for name, value in call.inputs.items()},
                "outputs": {name: encode(value, self.put) for name, value in call.outputs.items()},
            }
        )

    def add_tree(self, tree: Mapping[str, Any]) -> None:
        """Append a record whose values are references to tensors that were put, or are in the base."""
        line = json.dumps(tree, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        self._index.write(line)
        self._lines.update(line)
        self.nbytes += len(line)

    def close(self, **more: Any) -> str:
        """Write what is left and the header, extended by ``more``; gives the trace's digest."""
        self._flush()
        size = self._index.tell()
        self._index.close()
        self._files[INDEX] = {"sha256": self._lines.hexdigest(), "bytes": size}
        own = {"format": FORMAT, "version": VERSION, "files": self._files}
        header = {"contract": list(CONTRACT_VERSION)} | self._header | more | own
        name = header_digest(header)
        told = json.dumps(header | {"sha256": name}, allow_nan=False)
        (self.path / HEADER).write_text(told + "\n", encoding="utf-8")
        return name

    def _flush(self) -> None:
        if self._pending:
            file = f"tensors-{len(self._files):05d}.safetensors"
            self._files[file] = write_shard(self.path / file, self._pending)
            self.nbytes += self._files[file]["bytes"]
            self._pending, self._pending_bytes = {}, 0

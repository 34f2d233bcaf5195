"""Tensor files of a trace: safetensors whose entries are bytes, named by their SHA-256."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from tandem.parity import limits
from tandem.parity.limits import integer, keys, mapping, parse_json, refuse, require, sequence

Tensor = torch.Tensor
_LENGTH_BYTES = 8


class RegularFile:
    """The mapped bytes of one file, which must be a plain file and no link.

    Raises:
        TraceError: it cannot be read, or is larger than ``longest``.
    """

    def __init__(self, path: Path, longest: int) -> None:
        try:
            # Neither follow a link nor wait for a pipe.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            refuse(str(path), error.strerror or str(error))
        try:
            found = os.fstat(descriptor)
            require(stat.S_ISREG(found.st_mode), str(path), "it is no plain file")
            require(found.st_size <= longest, str(path), f"it has {found.st_size} bytes, more than {longest}")
            self.size = found.st_size
            # Private pages: nothing that a reader does can change the file.
            self.data = mmap.mmap(descriptor, self.size, flags=mmap.MAP_PRIVATE) if self.size else b""
        except OSError as error:
            refuse(str(path), error.strerror or str(error))
        finally:
            os.close(descriptor)

    def sha256(self) -> str:
        """Of all bytes."""
        return hashlib.sha256(self.data).hexdigest()


class Shard:
    """One tensor file, its header checked.

    Args:
        path: the file.
        sha256, nbytes: what the trace's header says about it.
    Raises:
        TraceError: the file is another one, cut or damaged.
    """

    def __init__(self, path: Path, sha256: str, nbytes: int) -> None:
        self._file = RegularFile(path, limits.MAX_SHARD)
        where = str(path)
        require(self._file.size == nbytes, where, f"it has {self._file.size} bytes, the header says {nbytes}")
        require(self._file.sha256() == sha256, where, "its SHA-256 is not that of the header")
        data = self._file.data
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        start = _LENGTH_BYTES + length
        require(length <= limits.MAX_SHARD_HEADER and start <= nbytes, where, "it is too short for its header")
        entries = mapping(parse_json(bytes(data[_LENGTH_BYTES:start]), where), where)
        entries.pop("__metadata__", None)
        self.ranges = {name: _range(entry, start, nbytes, f"{where}, {name[:80]}") for name, entry in entries.items()}

    def bytes_of(self, name: str) -> memoryview:
        """The bytes stored under a name."""
        start, stop = self.ranges[name]
        return memoryview(self._file.data)[start:stop]


def _range(entry: Any, start: int, size: int, where: str) -> tuple[int, int]:
    entry = mapping(entry, where)
    keys(entry, {"dtype", "shape", "data_offsets"}, set(), where)
    require(entry["dtype"] == "U8", where, "entries of a trace are bytes (U8)")
    offsets, shape = sequence(entry["data_offsets"], where, 2), sequence(entry["shape"], where, 1)
    require(len(offsets) == 2 and len(shape) == 1, where, "its offsets or its shape are malformed")
    first, last = (start + integer(n, where, 0, limits.MAX_SHARD) for n in offsets)
    require(first <= last <= size, where, "it lies outside the file")
    require(last - first == integer(shape[0], where), where, "its length is not its shape")
    require(last - first <= limits.MAX_TENSOR, where, "it is too large")
    return first, last


def write_shard(path: Path, entries: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write byte tensors by name; gives ``{"sha256", "bytes"}`` of the file."""
    safetensors.torch.save_file(dict(entries), path)
    file = RegularFile(path, limits.MAX_SHARD)
    return {"sha256": file.sha256(), "bytes": file.size}

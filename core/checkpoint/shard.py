"""One safetensors file: its header, checked, and its data, memory-mapped."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tandem.checkpoint.inventory import ITEMSIZE, TensorSpec
from tandem.errors import CheckpointError

# Headers are read and checked without torch; only data needs it.
if TYPE_CHECKING:
    from torch import Tensor

_LENGTH_BYTES = 8
_MAX_HEADER = 100 << 20
_RESTORE = "download or copy the file again"
# Private pages are never reserved: a shard may be larger than the machine's memory.  Older Pythons have
# no name for the flag.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class StoredTensor(NamedTuple):
    """A tensor in a file: its spec and the half-open byte range of its data."""

    spec: TensorSpec
    start: int
    stop: int


class Shard:
    """A safetensors file.  Opening reads the header only; data is mapped at the first :meth:`view`.

    Raises:
        CheckpointError: the header is damaged, or the file's length is not what the header says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mapping: mmap.mmap | None = None
        try:
            with path.open("rb") as file:
                size = path.stat().st_size
                header, start = _read_header(file.read(_LENGTH_BYTES), file, path, size)
        except OSError as error:
            raise CheckpointError(
                "a shard cannot be read", where=str(path), why=error.strerror or str(error), fix=_RESTORE
            ) from error
        self.tensors = _read_entries(header, start, path)
        _check_extent(list(self.tensors.values()), start, size, path)

    def view(self, name: str, first_row: int, rows: int) -> Tensor:
        """Rows of a tensor without copying; only pages that are touched are read from the file.

        Writing to the view changes private memory, never the file.
        """
        import torch

        from tandem.checkpoint.writer import TORCH_DTYPES

        spec, start, _ = self.tensors[name]
        row_bytes = spec.nbytes // spec.shape[0]
        offset, count = start + first_row * row_bytes, rows * row_bytes
        dtype = TORCH_DTYPES[spec.dtype]
        if count == 0:
            return torch.empty((rows, *spec.shape[1:]), dtype=dtype)
        raw = torch.frombuffer(self._map(), dtype=torch.uint8, count=count, offset=offset)
        if offset % dtype.itemsize:
            raw = raw.clone()  # vector loads want aligned elements; official files are aligned
        return raw.view(dtype).view(rows, *spec.shape[1:])

    def release(self, start: int, stop: int) -> None:
        """Give the pages of a byte range back to the system.  Views stay valid and are read again."""
        if self._mapping is not None and stop > start:
            start -= start % mmap.PAGESIZE
            self._mapping.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def release_all(self) -> None:
        """Give back every page of the file."""
        if self._mapping is not None:
            self.release(0, len(self._mapping))

    def close(self) -> None:
        """Forget the mapping; it goes away with the last view."""
        self._mapping = None

    def _map(self) -> mmap.mmap:
        if self._mapping is None:
            with self.path.open("rb") as file:
                self._mapping = mmap.mmap(
                    file.fileno(),
                    0,
                    flags=mmap.MAP_PRIVATE | _NORESERVE,
                    prot=mmap.PROT_READ | mmap.PROT_WRITE,
                )
        return self._mapping


def _damaged(path: Path, why: str, tensor: str | None = None) -> CheckpointError:
    where = f"tensor '{tensor}' in {path}" if tensor else str(path)
    return CheckpointError("a shard is damaged", where=where, why=why, fix=_RESTORE)


def _read_header(prefix: bytes, file: Any, path: Path, size: int) -> tuple[Mapping[str, Any], int]:
    length = int.from_bytes(prefix, "little")
    if len(prefix) < _LENGTH_BYTES or length > min(_MAX_HEADER, size - _LENGTH_BYTES):
        raise _damaged(path, f"the file has {size} bytes, too few for the header it announces")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise _damaged(path, "the header is not an object")
    header.pop("__metadata__", None)
    return header, _LENGTH_BYTES + length


def _read_entries(header: Mapping[str, Any], base: int, path: Path) -> dict[str, StoredTensor]:
    return {name: _read_entry(name, entry, base, path) for name, entry in header.items()}


def _read_entry(name: str, entry: Any, base: int, path: Path) -> StoredTensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"its header entry is {entry!r}", name) from error
    if not isinstance(dtype, str) or dtype not in ITEMSIZE:
        allowed = ", ".join(ITEMSIZE)
        raise _damaged(path, f"found dtype {dtype!r}; expected one of {allowed}", name)
    if not shape or any(type(item) is not int or item < 0 for item in (*shape, begin, end)):
        raise _damaged(path, f"found shape {list(shape)} at bytes {begin} to {end}", name)
    spec = TensorSpec(name, shape, dtype)
    if end - begin != spec.nbytes:
        why = f"it takes bytes {begin} to {end}; shape {list(shape)} of {dtype} takes {spec.nbytes} bytes"
        raise _damaged(path, why, name)
    return StoredTensor(spec, base + begin, base + end)


def _check_extent(tensors: list[StoredTensor], start: int, size: int, path: Path) -> None:
    """Tensors must fill the file exactly: no gap, no overlap, nothing missing, nothing left over."""
    position = start
    for stored in sorted(tensors, key=lambda stored: (stored.start, stored.stop)):
        if stored.stop > size:
            why = f"the file is truncated: it has {size} bytes and the tensor ends at byte {stored.stop}"
            raise _damaged(path, why, stored.spec.name)
        if stored.start != position:
            why = f"its data starts at byte {stored.start}; the tensor before it ends at byte {position}"
            raise _damaged(path, why, stored.spec.name)
        position = stored.stop
    if position != size:
        raise _damaged(path, f"the file has {size} bytes; its tensors end at byte {position}")

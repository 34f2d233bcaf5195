"""Streaming writer of sharded checkpoints in the official format.

The list of tensors is known before the first value is, so shards and headers are laid out at once and
each tensor is written where it belongs: memory use is that of one piece of one tensor.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import torch
from torch import Tensor

from tandem.checkpoint.inventory import INDEX_NAME, ITEMSIZE, TensorSpec
from tandem.errors import CheckpointError

TORCH_DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
}
_HEADER_ALIGNMENT = 8


@dataclass(slots=True)
class _Slot:
    """Where a tensor lies and how many of its bytes are written."""

    spec: TensorSpec
    shard: int
    offset: int
    written: int = 0


class CheckpointWriter:
    """Writes the shards and the index of a checkpoint directory.

    Use as a context manager; leaving it without an error finishes the checkpoint.

    Args:
        directory: created if needed; shards and index of an earlier checkpoint are overwritten.
        specs: every tensor that will be written, a scale right after its weight.
        max_shard_bytes: soft limit of a shard; a larger tensor gets a shard of its own.
    """

    def __init__(
        self, directory: str | Path, specs: list[TensorSpec], max_shard_bytes: int = 5 << 30
    ) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        # Without an index a directory is not a checkpoint: it goes first and comes last.
        (self._directory / INDEX_NAME).unlink(missing_ok=True)
        shards = _plan_shards(specs, max_shard_bytes)
        self._names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
        self._slots: dict[str, _Slot] = {}
        self._files: list[BinaryIO] = []
        for index, shard in enumerate(shards):
            self._open_shard(index, shard)

    def write(self, name: str, rows: Tensor) -> None:
        """Write a tensor, or its next rows: pieces go one after the other along dimension 0.

        Raises:
            CheckpointError: the name, dtype, row shape or number of rows is not what was announced.
        """
        slot = self._slots.get(name)
        if slot is None:
            raise _error("a tensor was not announced", name, "it is not in the list the writer was given")
        spec = slot.spec
        expected = TORCH_DTYPES[spec.dtype]
        if rows.dtype is not expected or rows.shape[1:] != spec.shape[1:]:
            found = f"{rows.dtype} with rows {tuple(rows.shape[1:])}"
            raise _error(
                "a tensor is not as announced", name, f"found {found}; expected {expected}, {spec.shape}"
            )
        payload = rows.detach().cpu().contiguous().view(torch.uint8).numpy()
        if slot.written + payload.nbytes > spec.nbytes:
            raise _error("a tensor has too many rows", name, f"{spec.shape[0]} were announced")
        file = self._files[slot.shard]
        file.seek(slot.offset + slot.written)
        file.write(payload.data)
        slot.written += payload.nbytes

    def finish(self) -> None:
        """Close the shards and write the index.

        Raises:
            CheckpointError: a tensor is missing or incomplete; no index is written then.
        """
        for file in self._files:
            file.close()
        for name, slot in self._slots.items():
            if slot.written != slot.spec.nbytes:
                found = f"{slot.written} of {slot.spec.nbytes} bytes were written"
                raise _error("a tensor is incomplete", name, found)
        index = {
            "metadata": {"total_size": sum(slot.spec.nbytes for slot in self._slots.values())},
            "weight_map": {name: self._names[slot.shard] for name, slot in sorted(self._slots.items())},
        }
        (self._directory / INDEX_NAME).write_text(json.dumps(index, indent=1), encoding="utf-8")

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            for file in self._files:
                file.close()

    def _open_shard(self, index: int, shard: list[TensorSpec]) -> None:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        position = 0
        # Widest elements first keeps every tensor aligned without padding.
        for spec in sorted(shard, key=lambda spec: -ITEMSIZE[spec.dtype]):
            end = position + spec.nbytes
            header[spec.name] = {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "data_offsets": [position, end],
            }
            self._slots[spec.name] = _Slot(spec, index, position)
            position = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _HEADER_ALIGNMENT)
        start = 8 + len(text)
        for spec in shard:
            self._slots[spec.name].offset += start
        file = open(self._directory / self._names[index], "wb")  # noqa: SIM115  closed by finish()
        self._files.append(file)
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(start + position)


def _plan_shards(specs: list[TensorSpec], max_bytes: int) -> list[list[TensorSpec]]:
    """Cut the list into shards; a weight stays with its scale, an Engram table stays alone."""
    units: list[list[TensorSpec]] = []
    for spec in specs:
        base, _, kind = spec.name.rpartition(".")
        if kind == "scale" and units and units[-1][-1].name == f"{base}.weight":
            units[-1].append(spec)
        else:
            units.append([spec])
    shards: list[list[TensorSpec]] = []
    room = 0
    for unit in units:
        size = sum(spec.nbytes for spec in unit)
        alone = ".engram.embed." in unit[0].name
        if alone or size > room:
            shards.append([])
            room = max_bytes
        shards[-1] += unit
        room = 0 if alone else room - size
    return shards


def _error(what: str, name: str, why: str) -> CheckpointError:
    return CheckpointError(
        what, where=f"tensor '{name}'", why=why, fix="write each tensor of the inventory once, as specified"
    )

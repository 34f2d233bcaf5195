"""Strict, memory-mapped reader of checkpoints in the official format."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tandem.checkpoint.inventory import INDEX_NAME, TensorGroup, TensorSpec, group_of, tensor_inventory
from tandem.checkpoint.shard import Shard
from tandem.errors import CheckpointError
from tandem.model.config import ModelConfig

# Headers are read and checked without torch; only data needs it.
if TYPE_CHECKING:
    from torch import Tensor

_PREFIX = "model."
_NAN_SCALE = 255
_LONGEST_NAME = 200  # characters of a shard's file name


class Checkpoint:
    """An open checkpoint directory.  Use :meth:`open`.

    Tensors are views of mapped files in the dtype they are stored in.  A loader reads what it needs,
    copies it to where it belongs, and releases it, so that memory never holds two copies of the model.
    """

    def __init__(self, path: Path, config: ModelConfig, shards: dict[str, tuple[Shard, str]]) -> None:
        self.path = path
        self.config = config
        self._shards = shards  # name without prefix -> file and name in the file

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Read ``config.json``, the index and every shard's header; no tensor data.

        Raises:
            CheckpointError: the directory or one of its files is missing or damaged.
            ConfigError: ``config.json`` is not of a supported model.
        """
        directory = Path(path)
        if not directory.is_dir():
            raise CheckpointError(
                "the model directory does not exist",
                where=str(directory),
                why="no such directory",
                fix="give a directory that holds config.json and the model's shards",
            )
        _require(directory / "config.json", "describes the model")
        _require(directory / INDEX_NAME, "lists the shards")
        config = ModelConfig.from_file(directory / "config.json")
        weight_map, total = _read_index(directory / INDEX_NAME)
        shards = _open_shards(directory, weight_map)
        checkpoint = cls(directory, config, shards)
        if total is not None and total != checkpoint.nbytes:
            why = f"metadata.total_size is {total}; the tensors take {checkpoint.nbytes} bytes"
            raise _damaged_index(directory / INDEX_NAME, why)
        return checkpoint

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(self.spec(name).nbytes for name in self._shards)

    def names(self) -> list[str]:
        """Names of all stored tensors, without the optional ``model.`` prefix, sorted."""
        return sorted(self._shards)

    def spec(self, name: str) -> TensorSpec:
        """Shape and dtype of a stored tensor."""
        shard, raw = self._locate(name)
        stored = shard.tensors[raw].spec
        return TensorSpec(name, stored.shape, stored.dtype)

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        """A view of a tensor, or of a range of its rows, in its stored dtype.

        Args:
            name: tensor name without prefix.
            rows: range along dimension 0 with step 1; bytes outside it are not read.

        Raises:
            CheckpointError: no such tensor, rows out of range, or a scale that is not a number.
        """
        shard, raw = self._locate(name)
        spec = shard.tensors[raw].spec
        first, last, step = (rows or slice(None)).indices(spec.shape[0])
        beyond = rows is not None and max(rows.start or 0, rows.stop or 0) > spec.shape[0]
        if step != 1 or beyond or last < first:
            raise _bad_tensor(name, f"rows {rows} were asked for; it has {spec.shape[0]}", "a bad row range")
        tensor = shard.view(raw, first, last - first)
        if spec.dtype == "F8_E8M0":
            _check_scale(name, tensor)
        return tensor

    def release(self, name: str) -> None:
        """Give back the memory of a tensor's file pages.  Views stay valid but are read again."""
        shard, raw = self._locate(name)
        stored = shard.tensors[raw]
        shard.release(stored.start, stored.stop)

    def release_all(self) -> None:
        """Give back the memory of all file pages."""
        for shard in self._files():
            shard.release_all()

    def validate(self, scope: Collection[TensorGroup] = (TensorGroup.TEXT,)) -> frozenset[TensorGroup]:
        """Compare the stored tensors with what ``config`` asks for.

        A group outside ``scope`` may be absent as a whole; when any of it is there, all of it must be.

        Returns:
            the groups that are present.

        Raises:
            CheckpointError: names the first tensor that is missing, unexpected, or of a wrong shape or
                dtype, and counts the others.
        """
        inventory = {spec.name: spec for spec in tensor_inventory(self.config)}
        known = {spec.group for spec in inventory.values()}
        present = frozenset(known & {group_of(name) for name in inventory if name in self._shards})
        problems = [
            problem
            for spec in inventory.values()
            if spec.group in present or spec.group in scope
            for problem in self._compare(spec)
        ]
        # Parts that the configuration does not describe cannot be checked and are not used.
        extra = [n for n in self.names() if n not in inventory and group_of(n) in known and not _is_unused(n)]
        problems += [
            _bad_tensor(name, "the model has no such tensor", "an unexpected tensor") for name in extra
        ]
        if not problems:
            return present
        first = problems[0]
        more = f" ({len(problems) - 1} further tensors differ)" if len(problems) > 1 else ""
        raise CheckpointError(first.what, where=first.where, why=first.why + more, fix=first.fix)

    def close(self) -> None:
        """Unmap the files; views that are still alive keep theirs."""
        for shard in self._files():
            shard.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _files(self) -> set[Shard]:
        return {shard for shard, _ in self._shards.values()}

    def _locate(self, name: str) -> tuple[Shard, str]:
        found = self._shards.get(name)
        if found is None:
            raise _bad_tensor(name, f"{self.path} holds no tensor of this name", "a tensor is missing")
        return found

    def _compare(self, expected: TensorSpec) -> list[CheckpointError]:
        if expected.name not in self._shards:
            wanted = f"expected {expected.dtype} {list(expected.shape)}"
            weight = expected.name.removesuffix("scale") + "weight"
            if expected.dtype == "F8_E8M0" and weight in self._shards:
                why = f"its scale '{expected.name}' is missing; {wanted}"
                return [_bad_tensor(weight, why, "a quantised weight has no scale")]
            return [
                _bad_tensor(expected.name, f"it is not in the checkpoint; {wanted}", "a tensor is missing")
            ]
        found = self.spec(expected.name)
        if found == expected:
            return []
        part = "dtype" if found.dtype != expected.dtype else "shape"
        why = f"found {found.dtype} {list(found.shape)}; expected {expected.dtype} {list(expected.shape)}"
        return [_bad_tensor(expected.name, why, f"a tensor has a wrong {part}")]


def _require(path: Path, purpose: str) -> None:
    if not path.is_file():
        raise CheckpointError(
            f"the checkpoint has no {path.name}",
            where=str(path),
            why=f"the file, which {purpose}, does not exist",
            fix="give a complete checkpoint directory",
        )


def _damaged_index(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        "the checkpoint index is damaged", where=str(path), why=why, fix="download or copy the file again"
    )


def _bad_tensor(name: str, why: str, what: str) -> CheckpointError:
    return CheckpointError(
        what, where=f"tensor '{name}'", why=why, fix="use a complete checkpoint that matches its config.json"
    )


def _read_index(path: Path) -> tuple[dict[str, str], int | None]:
    try:
        index: Any = json.loads(path.read_text(encoding="utf-8"))
        weight_map = index["weight_map"]
        total = index.get("metadata", {}).get("total_size")
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise _damaged_index(path, f"no weight_map can be read from it: {error!r}") from error
    if not isinstance(weight_map, dict):
        raise _damaged_index(path, "weight_map is not an object")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or len(file) > _LONGEST_NAME:
            raise _damaged_index(
                path, f"tensor '{name}' is said to be in {file!r}; expected a plain file name"
            )
    return weight_map, total


def _open_shards(directory: Path, weight_map: dict[str, str]) -> dict[str, tuple[Shard, str]]:
    index = directory / INDEX_NAME
    files: dict[str, Shard] = {}
    found: dict[str, tuple[Shard, str]] = {}
    for raw, file in weight_map.items():
        if file not in files:
            if not (directory / file).is_file():
                raise _damaged_index(index, f"tensor '{raw}' is said to be in {file}, which does not exist")
            files[file] = Shard(directory / file)
        if raw not in files[file].tensors:
            raise _damaged_index(index, f"tensor '{raw}' is said to be in {file}, which does not hold it")
        name = raw.removeprefix(_PREFIX)
        if name in found:
            raise _damaged_index(index, f"tensor '{name}' occurs with and without the prefix '{_PREFIX}'")
        found[name] = (files[file], raw)
    for file, shard in files.items():
        for raw in shard.tensors:
            if weight_map.get(raw) != file:
                raise _damaged_index(
                    index, f"{file} holds tensor '{raw}', which the index does not place there"
                )
    return found


def _is_unused(name: str) -> bool:
    """Copies of the token embedding and head that some files give to draft stages; ours are shared."""
    parts = name.split(".")
    return len(parts) == 4 and parts[0] == "mtp" and parts[2] in ("embed", "head") and parts[3] == "weight"


def _check_scale(name: str, scale: Tensor) -> None:
    import torch

    codes = scale.view(torch.uint8)
    if codes.numel() and int(codes.max()) == _NAN_SCALE:
        position = int((codes.flatten() == _NAN_SCALE).byte().argmax())
        why = f"element {position} is byte 255, which is not a number; expected 0 to 254"
        raise _bad_tensor(name, why, "a scale is damaged")

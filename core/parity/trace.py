"""Traces: op calls with their inputs and outputs, in one form for every backend.

A trace is a directory: ``header.json`` says what ran and holds the hashes of the other files, ``index.jsonl`` has
one record a line, ``tensors-NNNNN.safetensors`` hold bytes named by their SHA-256, each once.  A trace is hostile
input: every file is hashed, every number is bounded, nothing in it is executed, and whatever is wrong with it is a
`TraceError`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import tandem.ops  # noqa: F401  (declares every op)
from tandem.contract.cases import CacheInput
from tandem.contract.opspec import CONTRACT_VERSION, OP_TABLE
from tandem.errors import TraceError
from tandem.parity import limits
from tandem.parity.kinds import fits
from tandem.parity.limits import integer, keys, mapping, parse_json, refuse, require, sequence, text
from tandem.parity.records import Call, Record, read_record
from tandem.parity.shards import RegularFile, Shard
from tandem.parity.values import decode, reference, units

Tensor = torch.Tensor

FORMAT, VERSION = "tandem-trace", 1
HEADER, INDEX = "header.json", "index.jsonl"
_SHARD_NAME = re.compile(r"tensors-\d{5}\.safetensors")
_IDS = frozenset({"first_row", "pad"})  # integer arguments that are not sizes
_NEEDED = {"format", "version", "contract", "files", "sha256"}


class Trace:
    """A trace that was checked as a whole.  Use :meth:`open`.

    Attributes:
        header: what ran; records: the calls in order; digest: SHA-256 that stands for all of it.
    """

    def __init__(self, path: Path, header: dict[str, Any], digest: str, base: Trace | None) -> None:
        self.path, self.header, self.digest, self.base = path, header, digest, base
        self.records: list[Record] = []
        self._trees: dict[int, dict[str, Any]] = {}
        self._shards: dict[str, Shard] = {}
        self._verified: set[str] = set()  # tensors whose bytes were found to be what their name says

    @classmethod
    def open(cls, path: str | Path, base: Trace | None = None) -> Trace:
        """Read and check header, index and all hashes.

        Args:
            path: the directory.
            base: the trace that this one replays; inputs of a replay lie there.
        Raises:
            TraceError: anything is missing, damaged, out of bounds, unknown or of another contract.
        """
        folder = Path(path)
        require(folder.is_dir(), str(folder), "it is no directory")
        header, name = _read_header(folder)
        trace = cls(folder, header, name, base)
        if base is not None:
            require(header.get("replay_of") == base.digest, str(folder), "it is no replay of the other trace")
        for file, said in header["files"].items():
            if file != INDEX:
                shard = Shard(folder / file, said["sha256"], said["bytes"])
                trace._shards |= dict.fromkeys(shard.ranges, shard)
        trace._read_index(header["files"][INDEX])
        return trace

    def require_calls(self) -> None:
        """Refuse pages where op calls are wanted.

        Raises:
            TraceError: it holds no op calls but cache pages.
        """
        if "states" in self.header and not self.records:
            refuse(
                str(self.path),
                "it is no op trace: it holds requests with cache pages, as parity kv-export writes them",
                "name a directory of parity record or replay; parity kv-import goes on with pages",
            )

    def load(self, record: Record) -> Call:
        """Inputs and outputs of a record.

        Raises:
            TraceError: a tensor is not what its name says; or this is a replay opened without its base.
        """
        return Call(self._values(record, "inputs", self._fetch), self._values(record, "outputs", self._fetch))

    def outputs(self, record: Record) -> dict[str, Any]:
        """Outputs alone; of a replay these need no base."""
        return self._values(record, "outputs", self._fetch)

    def inputs(self, record: Record) -> dict[str, Any]:
        """Inputs alone."""
        return self._values(record, "inputs", self._fetch)

    def writers(self, record: Record) -> dict[str, Tensor]:
        """By the path of a cache that is read: int32, for each held slot the record that wrote it, -1 unknown."""
        trees = self._trees[record.id]["writers"]
        return {path: self.tensor(tree, f"record {record.id}, writers") for path, tree in trees.items()}

    def tensor(self, tree: Any, where: str) -> Tensor:
        """The stored tensor of a reference, wherever it stands."""
        return self._fetch(*reference(tree, where))

    def tree(self, record: Record) -> dict[str, Any]:
        """The record as it stands in the index, values by reference."""
        return self._trees[record.id]

    def stored(self, name: str) -> bool:
        """Whether the bytes of this hash are in this trace."""
        return name in self._shards

    def _values(self, record: Record, kind: str, fetch: Any) -> dict[str, Any]:
        trees = self._trees[record.id][kind]
        return {name: decode(tree, fetch, f"record {record.id}, {kind}.{name}") for name, tree in trees.items()}

    def _fetch(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        shard = self._shards.get(name)
        if shard is None:
            if self.base is None:
                refuse(str(self.path), f"tensor {name} is not in it", "open a replay with the trace it replays")
            return self.base._fetch(name, dtype, shape)
        data = torch.frombuffer(bytearray(shard.bytes_of(name)), dtype=torch.uint8) if math.prod(shape) else None
        _check_length(shard, name, dtype, shape)
        if data is None:
            return torch.empty(shape, dtype=dtype)
        if name not in self._verified:
            require(hashlib.sha256(data.numpy().data).hexdigest() == name, f"tensor {name}", "its bytes are others")
            self._verified.add(name)
        if dtype is torch.bool:
            require(bool((data <= 1).all()), f"tensor {name}", "a truth value is neither 0 nor 1")
        return data.view(dtype).view(shape)

    def _promise(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """The tensor without its values, for checking."""
        shard = self._shards.get(name)
        if shard is not None:
            _check_length(shard, name, dtype, shape)
        elif self.base is not None:
            return self.base._promise(name, dtype, shape)
        else:
            require("replay_of" in self.header, f"tensor {name}", "it is in no shard")
        return torch.empty(shape, dtype=dtype, device="meta")

    def _read_index(self, said: Mapping[str, Any]) -> None:
        path = self.path / INDEX
        file = RegularFile(path, limits.MAX_INDEX)
        require(file.size == said["bytes"], str(path), f"it has {file.size} bytes, the header says {said['bytes']}")
        require(file.sha256() == said["sha256"], str(path), "its SHA-256 is not that of the header")
        lines = bytes(file.data).splitlines()
        require(len(lines) <= limits.MAX_RECORDS, str(path), f"it has more than {limits.MAX_RECORDS} records")
        known: dict[int, dict[str, Any]] = {}
        for number, line in enumerate(lines):
            where = f"{path}, line {number + 1}"
            require(len(line) <= limits.MAX_LINE, where, f"it is longer than {limits.MAX_LINE} bytes")
            tree = mapping(parse_json(line, where), where)
            record = read_record(tree, where)
            require(not self.records or record.id > self.records[-1].id, where, "record numbers do not ascend")
            self._trees[record.id] = tree
            self._check_values(record, where, known)
            self.records.append(record)

    def _check_values(self, record: Record, where: str, known: dict[int, dict[str, Any]]) -> None:
        """Arguments are the op's, of its types; sources are outputs of earlier records and fit."""
        spec = OP_TABLE[record.op]
        inputs, outputs = (self._values(record, kind, self._promise) for kind in ("inputs", "outputs"))
        parameters = inspect.signature(spec.reference).parameters
        for name, value in inputs.items():
            require(name in parameters and name != "parts", where, f"'{record.op}' has no argument '{name[:80]}'")
            annotation = str(parameters[name].annotation)
            require(fits(value, annotation), where, f"argument '{name}' is {type(value).__name__}, not {annotation}")
            if type(value) is int:
                low, high = (-limits.MAX_NUMBER, limits.MAX_NUMBER) if name in _IDS else (0, limits.MAX_SIZE + 1)
                integer(value, f"{where}, '{name}'", low, high)
        for name, parameter in parameters.items():
            needed = name != "parts" and parameter.default is inspect.Parameter.empty
            require(name in inputs or not needed, where, f"'{record.op}' lacks its argument '{name}'")
        for name in outputs:
            require(name in spec.classes, where, f"'{record.op}' has no output '{name[:80]}'")
        flows = dict(item for name, value in inputs.items() for item in units(value, name))
        for path, (source, leaf) in record.sources.items():
            require(path in flows, where, f"source of '{path[:80]}', which is no input")
            require(source < record.id, where, f"input '{path}' comes from record {source}, which is not earlier")
            view = record.views.get(path)
            seen = view is None or view.shape == tuple(flows[path].shape)
            require(seen, where, f"the view of '{path}' has its own shape")
            made = known.get(source)
            require(made is None or leaf in made, where, f"record {source} has no output '{leaf[:80]}'")
        tree = self._trees[record.id]
        for name in (name for name, value in inputs.items() if isinstance(value, CacheInput)):
            found = reference(tree["writers"].get(name), where)
            self._promise(*found)
            wanted = torch.int32, tuple(tree["inputs"][name]["cache"]["slots"]["s"])
            require(found[1:] == wanted, where, f"the writers of '{name}' are not one for each entry")
        if record.error is None:
            known[record.id] = {path: unit for name, value in outputs.items() for path, unit in units(value, name)}


def _check_length(shard: Shard, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    start, stop = shard.ranges[name]
    needed = math.prod(shape) * dtype.itemsize
    require(stop - start == needed, f"tensor {name}", f"it has {stop - start} bytes; {dtype} {shape} takes {needed}")


def header_digest(header: Mapping[str, Any]) -> str:
    """SHA-256 of a header without its own ``sha256``; through the hashes in it, of the whole trace."""
    plain = {key: value for key, value in header.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _read_header(folder: Path) -> tuple[dict[str, Any], str]:
    """The checked header, and its own SHA-256."""
    where = str(folder / HEADER)
    header = mapping(parse_json(bytes(RegularFile(folder / HEADER, limits.MAX_HEADER).data), where), where)
    require(header.get("format") == FORMAT, where, f"its format is not '{FORMAT}'")
    require(header.get("version") == VERSION, where, f"its version is not {VERSION}")
    missing = sorted(_NEEDED - header.keys())
    require(not missing, where, f"it lacks {', '.join(missing)}")
    check_contract(header["contract"], where)
    mapping(header.get("model") or {}, f"{where}, model")
    name = header_digest(header)
    require(header["sha256"] == name, where, "its SHA-256 is not the one it states")
    files = mapping(header["files"], where)
    require(INDEX in files and len(files) <= limits.MAX_SHARDS, where, "it names no index, or too many files")
    for file, said in files.items():
        require(file == INDEX or _SHARD_NAME.fullmatch(file) is not None, where, f"'{file[:80]}' is no file of a trace")
        keys(mapping(said, where), {"sha256", "bytes"}, set(), where)
        text(said["sha256"], where, 64)
        integer(said["bytes"], where)
    return header, name


def check_contract(pair: Any, where: str) -> None:
    """Refuse values of another major version of the contract, whose meaning may be another.

    Raises:
        TraceError: the pair is malformed, or its major is not core's.
    """
    numbers = [integer(n, where, 0, 1 << 16) for n in sequence(pair, where, 2)]
    require(len(numbers) == 2, where, "the contract is no pair of numbers")
    if numbers[0] != CONTRACT_VERSION[0]:
        raise TraceError(
            f"a trace of contract {numbers[0]}.{numbers[1]} cannot be read under contract "
            f"{CONTRACT_VERSION[0]}.{CONTRACT_VERSION[1]}",
            where=where,
            why="the major versions differ, so the same bits may mean something else",
            fix="record it again with a version of Tandem that has the same major",
        )

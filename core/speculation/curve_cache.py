"""Measured cost curves on disk, each under a key of everything that can change it."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tandem.contract.environment import cache_dir
from tandem.contract.opspec import CONTRACT_VERSION
from tandem.errors import ConfigError
from tandem.speculation.curve import CostCurve, Point

FORMAT = 1
_FOLDER = "cost-curves"
_CODE = (".py", ".so")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CurveKey:
    """What a curve was measured on; any difference is another curve.

    Args:
        hardware: the backend's fingerprint.
        kernels: hash of the code that runs a step, see `code_hash`.
        model: fingerprint of the model.
        flags: engine options that change what a row costs, by name.
        contract: (major, minor) of the contract.
    """

    hardware: Mapping[str, str]
    kernels: str
    model: str
    flags: Mapping[str, str]
    contract: tuple[int, int] = CONTRACT_VERSION

    @property
    def digest(self) -> str:
        """sha256 of the parts and the form of the file, in hexadecimal."""
        text = json.dumps({"format": FORMAT, **_plain(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def code_hash(objects: Iterable[object]) -> str:
    """sha256, in hexadecimal, of all Python files and libraries in the folders that define some objects.

    Args:
        objects: instances, classes, functions or modules; of each the folder of its file counts, without those
            below.
    """
    folders = {Path(inspect.getfile(_with_a_file(item))).parent for item in objects}
    total = hashlib.sha256()
    files = sorted(file for folder in folders for file in folder.iterdir() if file.suffix in _CODE)
    for file in files:
        total.update(f"{file.parent.name}/{file.name}\0".encode())
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def path_of(key: CurveKey, folder: Path | None = None) -> Path:
    """The file of a curve, in ``folder`` or in the cache folder."""
    return (cache_dir() if folder is None else folder) / _FOLDER / f"{key.digest}.json"


def load(key: CurveKey, folder: Path | None = None) -> list[Point] | None:
    """The points of a curve, or None where there are none; a file that cannot be used is ignored and logged."""
    file = path_of(key, folder)
    try:
        return _read(json.loads(file.read_text(encoding="utf-8")), key)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, ConfigError) as error:
        _LOG.warning("the cost curve in %s is not used and will be measured again: %s", file, error)
        return None


def save(key: CurveKey, points: Sequence[Point], folder: Path | None = None) -> None:
    """Write a curve, whole or not at all; a folder that cannot be written is logged and nothing else."""
    file = path_of(key, folder)
    text = json.dumps({"format": FORMAT, "key": _plain(key), "points": [list(point) for point in points]}, indent=1)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.stem[:16]}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text + "\n")
            os.replace(name, file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        _LOG.warning("the cost curve cannot be kept in %s: %s", file, error)


def _read(found: Any, key: CurveKey) -> list[Point]:
    if not isinstance(found, dict) or found["format"] != FORMAT or found["key"] != _plain(key):
        raise ValueError("it is of another form or belongs to another key")
    points = [(int(rows), float(seconds)) for rows, seconds in found["points"]]
    CostCurve(points)
    return points


def _plain(key: CurveKey) -> dict[str, Any]:
    parts = asdict(key)
    return parts | {"contract": list(key.contract), "hardware": dict(key.hardware), "flags": dict(key.flags)}


def _with_a_file(item: object) -> Any:
    return item if inspect.ismodule(item) or inspect.isclass(item) or inspect.isroutine(item) else type(item)

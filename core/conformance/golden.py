"""Writes golden cases: what every op is given and must give, as safetensors and JSON, for use without Tandem.

``check.py``, which is written beside them, checks a device's outputs with numpy alone.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tqdm import tqdm

from tandem.conformance.calls import run_call
from tandem.conformance.derive.base import View, load_all
from tandem.conformance.golden_outputs import describe
from tandem.conformance.select import selected
from tandem.contract.cases import CacheInput, PartlyUsed, WeightInput, materialise
from tandem.contract.opspec import CONTRACT_VERSION, Case, OpSpec, iter_ops, table_signature
from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend
from tandem.contract.types import QFormat, QTensor
from tandem.errors import ConfigError

Tensor = torch.Tensor

POISON = 0xFF  # stands where memory may hold anything: NaN in every float format
SEED = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """What an export wrote.

    Args:
        directory: where.
        cases: names, ``op/case``.
        nbytes: size of all files.
        seconds: time taken.
    """

    directory: Path
    cases: tuple[str, ...]
    nbytes: int
    seconds: float


def export(directory: Path, case: str = "", progress: bool = False) -> Summary:
    """Write the golden cases ``op/case`` that a filter selects (see `selected`) into a new or empty directory.

    Raises:
        ConfigError: the directory holds files, or no case matches.
    """
    wanted = selected((case_name(spec, one) for spec, one in _cases()), case)
    chosen = [(spec, one) for spec, one in _cases() if case_name(spec, one) in wanted]
    if not chosen:
        raise ConfigError(
            "no golden case was chosen",
            where=f"case filter '{case}'",
            why="no case is named so; a name is op/case",
            fix="use a part of a name such as linear/",
        )
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(
            "golden cases are not written over other files",
            where=str(directory),
            why="the directory is not empty",
            fix="name a new directory",
        )
    began = time.perf_counter()
    # The reference rounds intermediate results for the outputs that are made from them; it judges nothing.
    plan = Plan(open_backend("cpu", {"native": False}))
    bar = tqdm(chosen, desc="golden cases", disable=None if progress else True)
    for spec, one in bar:
        write_case(directory / case_name(spec, one), plan, spec, one)
    names = tuple(case_name(spec, one) for spec, one in chosen)
    _write_index(directory, names)
    nbytes = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    return Summary(directory, names, nbytes, time.perf_counter() - began)


def _cases() -> Iterator[tuple[OpSpec, Case]]:
    for spec in iter_ops():
        for one in spec.cases:
            yield spec, one


def case_name(spec: OpSpec, one: Case) -> str:
    """``op/case``: the stem of a golden case's files."""
    return f"{spec.name}/{one.name}"


def write_case(stem: Path, plan: Plan, spec: OpSpec, one: Case) -> None:
    """Write ``stem.json`` and ``stem.safetensors``."""
    data = one.build(SEED)
    tensors: dict[str, Tensor] = {}
    inputs = {name: _input(value, name, tensors) for name, value in data.items()}
    got = run_call(plan, spec.name, materialise(one.build(SEED), plan.backend, POISON))
    derivation = load_all()[spec.name]
    wanted, more = describe(spec.name, View(data, POISON), got, derivation)
    about = {
        "op": spec.name,
        "case": one.name,
        "contract": list(CONTRACT_VERSION),
        "since": list(spec.since),
        "classes": spec.classes,
        "inputs": inputs,
        "outputs": wanted,
    }
    stem.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{stem}.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    contiguous = {name: tensor.contiguous().clone() for name, tensor in (tensors | more).items()}
    save_file(contiguous, f"{stem}.safetensors")


def _write_index(directory: Path, names: tuple[str, ...]) -> None:
    index = {
        "format": "tandem golden cases 1",
        "contract": list(CONTRACT_VERSION),
        "op_table": table_signature(),
        "cases": list(names),
    }
    (directory / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    for name in ("check.py", "README.md"):
        source = resources.files("tandem").joinpath("assets", "golden", name)
        with resources.as_file(source) as file:
            shutil.copyfile(file, directory / name)


def _input(value: Any, path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """JSON of one argument; its tensors go into ``tensors`` as ``in/<path>``."""

    def stored(tensor: Tensor, part: str = "") -> str:
        key = f"in/{path}{part}"
        tensors[key] = tensor
        return key

    if isinstance(value, Tensor):
        return {"tensor": stored(value)}
    if isinstance(value, PartlyUsed):
        return {"tensor": stored(value.filled(POISON)), "unused": "may hold anything; it is filled with 0xFF"}
    if isinstance(value, QTensor):
        parts = {"data": stored(value.data, ".data"), "scale": stored(value.scale, ".scale")}
        return {"quantised": value.fmt.value, "shape": list(value.shape), **parts}
    if isinstance(value, WeightInput):
        return _weight(value, stored)
    if isinstance(value, CacheInput):
        layout = value.layout
        sizes = {"dim": layout.dim, "block_entries": layout.block_entries, "blocks": value.num_blocks}
        entries = stored(torch.from_numpy(value.image(POISON)), ".entries")
        held = stored(torch.tensor(value.held, dtype=torch.int32), ".held")
        return {"cache": layout.kind.value, "fmt": layout.fmt.value, **sizes, "entries": entries, "held": held}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return _record(type(value).__name__, fields, path, tensors)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _record(type(value).__name__, value._asdict(), path, tensors)
    return {"value": _plain(value)}


def _weight(value: WeightInput, stored: Callable[[Tensor, str], str]) -> dict[str, Any]:
    weight = value.weight
    data = weight.data if weight.scale is None else weight.data.view(torch.uint8)
    scale = None if weight.scale is None else stored(weight.scale.view(torch.uint8), ".scale")
    parts = {"data": stored(data, ".data"), "scale": scale}
    return {"weight": value.kind.value, "fmt": value.weight.fmt.value, "shape": list(value.shape), **parts}


def _record(kind: str, fields: dict[str, Any], path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {"record": kind, "fields": {n: _input(v, f"{path}.{n}", tensors) for n, v in fields.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, torch.dtype):
        return {torch.bfloat16: QFormat.BF16, torch.float32: QFormat.F32}[value].value
    return list(value) if isinstance(value, tuple) else value

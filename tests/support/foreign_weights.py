"""A weight that another backend packed is refused by every op that takes one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tandem.ops  # noqa: F401  (declares every op)
from tandem.conformance.stage import Stage
from tandem.contract.cases import WeightInput
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan
from tandem.contract.types import PackedWeight
from tandem.errors import LayoutError

FOREIGN = "elsewhere.packed"


def _parts(value: Any) -> dict[str, Any]:
    """Arguments, or fields of an argument that is a dataclass, by name."""
    if isinstance(value, dict):
        return value
    if not dataclasses.is_dataclass(value) or isinstance(value, (type, WeightInput, PackedWeight)):
        return {}
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def _weights(value: Any, kind: type) -> Iterator[tuple[str, ...]]:
    for name, part in _parts(value).items():
        if isinstance(part, kind):
            yield (name,)
        yield from ((name, *rest) for rest in _weights(part, kind))


def _foreign(value: Any, path: tuple[str, ...]) -> Any:
    """The value with the weight at a path in a layout of another backend."""
    if not path:
        return dataclasses.replace(value, layout=FOREIGN, token=object())
    changed = {path[0]: _foreign(_parts(value)[path[0]], path[1:])}
    return value | changed if isinstance(value, dict) else dataclasses.replace(value, **changed)


OPS = sorted(op for op, spec in OP_TABLE.items() if any(_weights(spec.cases[0].build(0), WeightInput)))


def check(plan: Plan, op: str) -> None:
    """Each weight of the op in turn; a named error in four parts, whatever the payload is."""
    stage = Stage(plan, OP_TABLE[op], OP_TABLE[op].cases[0], quick=True)
    args = stage.arguments()
    paths = list(_weights(args, PackedWeight))
    assert paths
    for path in paths:
        with pytest.raises(LayoutError) as caught, torch.no_grad():
            plan.bind(op, "test")(**_foreign(args, path))
        told = caught.value.to_dict()
        assert all(told[part] for part in ("what", "where", "why", "fix")), path
        assert FOREIGN in caught.value.where + caught.value.why, (path, str(caught.value))

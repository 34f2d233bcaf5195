"""Arrays that lie where a kernel does not expect them are refused in four parts, or make no difference."""

from __future__ import annotations

from typing import Any

import torch

from tandem.conformance.calls import collect, difference
from tandem.conformance.stage import Stage
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan
from tandem.errors import TandemError


def _apart(array: torch.Tensor) -> torch.Tensor:
    """The same values, elements of a row two apart."""
    wide = torch.full((*array.shape[:-1], 2 * array.shape[-1]), 1, dtype=array.dtype)
    view = wide[..., ::2]
    return view.copy_(array)


def _run(stage: Stage, args: dict[str, Any]) -> dict[str, Any] | TandemError:
    """Outputs; or the error that the library raises for a reader."""
    try:
        with torch.no_grad():
            result = stage.plan.bind(stage.op, "test")(**args)
    except TandemError as error:
        return error
    return collect(stage.plan.backend, stage.op, args, result)


def check(plan: Plan, op: str) -> None:
    """Each array of the op's first case in turn, apart and without memory; then a right call gives what it gave."""
    stage = Stage(plan, OP_TABLE[op], OP_TABLE[op].cases[0], quick=True)
    right = _run(stage, stage.arguments())
    assert isinstance(right, dict)
    arrays = {
        name for name, value in stage.arguments().items() if isinstance(value, torch.Tensor) and value.numel() > 1
    }
    for name in sorted(arrays):
        args = stage.arguments()
        found = _run(stage, args | {name: _apart(args[name])})
        if isinstance(found, TandemError):
            assert all(found.to_dict().values()), name
        else:
            assert difference(op, args, right, found) is None, name
        nowhere = _run(stage, args | {name: args[name].to("meta")})
        assert isinstance(nowhere, TandemError) and all(nowhere.to_dict().values()), name
    again = _run(stage, stage.arguments())
    assert isinstance(again, dict) and difference(op, stage.arguments(), right, again) is None

"""A call without rows is legal: it gives outputs without rows, and reads no memory."""

from __future__ import annotations

import torch

from tandem.conformance.calls import leaves
from tandem.conformance.rows import ROW_ARGUMENTS, cut
from tandem.conformance.stage import Stage
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan

OPS = sorted(ROW_ARGUMENTS)
IN_PLACE = {"kv_store", "kv_write"}  # they return a cache, or a cache beside rows


def check(plan: Plan, op: str) -> None:
    stage = Stage(plan, OP_TABLE[op], OP_TABLE[op].cases[0], quick=True)
    data = cut(op, stage.data, torch.zeros(0, dtype=torch.int64))
    outputs = leaves(stage.run(stage.arguments(changed=data)))
    assert outputs
    if op not in IN_PLACE:
        assert {name: tuple(out.shape)[0] for name, out in outputs.items() if out.dim()} == dict.fromkeys(outputs, 0)

"""The checks of one case: values, poison, sentinel, repeat, read-only, rows.

Each takes a `Stage`, raises `Mismatch` where the contract is not kept and `Skipped` where it asks for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tandem.conformance.calls import difference, leaves, meaningful, read_argument, unequal
from tandem.conformance.compare import Measured, Mismatch
from tandem.conformance.derive.base import View, load_all
from tandem.conformance.dtypes import wrong_dtype
from tandem.conformance.memory import SENTINEL, Guarded, before, named_rows, without_junk, written
from tandem.conformance.rows import ROW_ARGUMENTS, SLOT_ARGUMENTS, cut, row_count, selections, take
from tandem.conformance.stage import FILL, Stage, fresh_memory
from tandem.contract.cases import CacheInput, WeightInput
from tandem.contract.types import CanonicalWeight, QTensor

Tensor = torch.Tensor
Found = dict[str, Measured]
OTHER_FILLS = (0x00, 0x7B)  # the first run has 0xFF
REPEATS = 3
# Row counts of which larger ones are there too: a few selections of these will do.
SMALL = ("-T1", "-T2", "-T15", "-T16")


class Skipped(Exception):
    """The check does not apply; the text says why."""


def values(stage: Stage) -> Found:
    """Every output within its class of an independent derivation."""
    outputs = stage.first[1]
    tensors = leaves(outputs)
    for name, tensor in tensors.items():
        wrong = wrong_dtype(stage.op, name, tensor, stage.data)
        if wrong is not None:
            raise Mismatch(f"{stage.op} {name} {wrong}")
    checks = load_all()[stage.op](View(stage.data, FILL), outputs)
    whole = {name: value for name, value in outputs.items() if isinstance(value, QTensor)}
    wanted = {name.partition(".")[0] for name in checks}
    if wanted != set(outputs):
        raise Mismatch(f"outputs are {', '.join(outputs)}, want {', '.join(sorted(wanted))}")
    found = {}
    for name, check in checks.items():
        value = whole.get(name, tensors.get(name))
        if value is None:
            raise Mismatch(f"{name}: there is no such output")
        found[name] = check.check(value, f"{stage.op} {name}")  # type: ignore[arg-type]
    return found


def poison(stage: Stage) -> Found:
    """The same bits whatever unused elements, unwritten entries and fresh memory hold."""
    runs = [(FILL, stage.first[1])]
    for fill in OTHER_FILLS:
        args = stage.arguments(fill)
        sizes = [tensor.numel() * tensor.element_size() for tensor in leaves(stage.first[1]).values()]
        with fresh_memory(stage.backend, fill, sizes):
            runs.append((fill, stage.run(args)))
    first, *others = without_junk(stage.op, stage.data, runs)
    for (fill, _), outputs in zip(runs[1:], others, strict=True):
        found = difference(stage.op, stage.data, first, outputs)
        if found is not None:
            raise Mismatch(f"unused memory filled with 0x{fill:02X} changes the result: {found}")
    return {}


def sentinel(stage: Stage) -> Found:
    """Memory that a call does not name, in and around what it writes, keeps its bits."""
    names = written(stage.op)
    if not names:
        raise Skipped("the op writes no argument")
    guards = {name: Guarded(stage.op, name, stage.data[name], stage.backend) for name in names}
    args = stage.arguments(SENTINEL, {name: guard.value for name, guard in guards.items() if guard.is_cache})
    args |= {name: guard.upload() for name, guard in guards.items() if not guard.is_cache}
    stage.run(args)
    for name, guard in guards.items():
        found = guard.changed(args[name], named_rows(stage.op, stage.data, name))
        if found is not None:
            raise Mismatch(found)
    return {}


def repeat(stage: Stage) -> Found:
    """Several runs give the same bits."""
    args, first = stage.first
    for number in range(1 if stage.quick else REPEATS):
        found = difference(stage.op, stage.data, first, stage.run(stage.again(args)))
        if found is not None:
            raise Mismatch(f"run {number + 2} gives other bits than the first: {found}")
    return {}


def read_only(stage: Stage) -> Found:
    """Arguments that the op does not write are as they were."""
    args, names = stage.first[0], written(stage.op)
    given = {name: value for name, value in stage.data.items() if name not in names}
    wanted = leaves(_plain({name: _before(value) for name, value in given.items()}))
    now = leaves(_plain({name: read_argument(stage.backend, args[name]) for name in given}))
    if wanted.keys() != now.keys():
        raise Mismatch(f"arguments hold {', '.join(now)}, want {', '.join(wanted)}")
    for name, value in wanted.items():
        found = unequal(f"argument {name}", now[name], value)
        if found is not None:
            raise Mismatch(f"an argument that is only read has other bits after the call: {found}")
    return {}


def _before(value: Any) -> Any:
    """Data as `read_argument` gives it back."""
    if isinstance(value, WeightInput):
        return value.weight
    if isinstance(value, (CacheInput, Tensor)) or hasattr(value, "filled"):
        return before(value, FILL)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_before(item) for item in value))
    fields = getattr(value, "__dataclass_fields__", None)
    if fields and not isinstance(value, (QTensor, type)):
        return {name: _before(getattr(value, name)) for name in fields}
    return value


def _plain(value: Any) -> Any:
    """Weights as bytes, whatever 8-bit dtype holds them."""
    if isinstance(value, CanonicalWeight):
        parts = {"data": value.data} if value.scale is None else {"data": value.data, "scale": value.scale}
        return {name: t.view(torch.uint8) if t.element_size() == 1 else t for name, t in parts.items()}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_plain(item) for item in value))
    fields = getattr(value, "__dataclass_fields__", None)
    return {name: _plain(getattr(value, name)) for name in fields} if fields else value


def rows(stage: Stage) -> Found:
    """Rows alone, in other batches, in another order and among padding have the same bits."""
    if not stage.backend.caps.batch_invariant:
        raise Skipped("the backend does not claim batch invariance")
    if stage.op not in ROW_ARGUMENTS:
        raise Skipped("the rows of this op are not independent; where they are computed, chunks are checked")
    few = stage.quick or stage.case.name.endswith(SMALL)
    for index in selections(row_count(stage.op, stage.data), few):
        if "cache" in written(stage.op) and len(set(index.tolist())) < len(index):
            continue  # slots of one call are distinct
        _check_rows(stage, index)
    _check_padding(stage)
    _check_hint(stage)
    return {}


def _check_rows(stage: Stage, index: Tensor) -> None:
    args, whole = stage.first
    part_data = stage.data | cut(stage.op, stage.data, index)
    changed = {name: part_data[name] for name in ROW_ARGUMENTS[stage.op] if name in part_data}
    part, full = leaves(stage.run(stage.again(args, changed))), leaves(whole)
    for name, have in part.items():
        if name == "cache":
            slots = [int(s) for s in part_data["slots"] if s >= 0]
            want, have = full[name][slots], have[slots]
        else:
            have = meaningful(stage.op, name, part_data, have)
            want = meaningful(stage.op, name, part_data, take(full[name], index))
        found = unequal(name, have, want)
        if found is not None:
            raise Mismatch(f"rows {_short(index)} alone give other bits than in the batch: {found}")


def _check_padding(stage: Stage) -> None:
    """Rows between padding rows."""
    slot = SLOT_ARGUMENTS.get(stage.op)
    if slot is None:
        return
    args, whole = stage.first
    padded = stage.data[slot].clone()
    padded[1::2] = -1
    full = leaves(whole)
    for name, have in leaves(stage.run(stage.again(args, {slot: padded}))).items():
        found = unequal(name, have[0::2], full[name][0::2])
        if found is not None:
            raise Mismatch(f"rows between padding rows give other bits: {found}")


def _check_hint(stage: Stage) -> None:
    """Host hints choose a way of computing, not a result."""
    args, whole = stage.first
    full = leaves(whole)
    for changed in _hints(stage.data):
        for name, have in leaves(stage.run(stage.again(args, changed))).items():
            want = full[name]
            if "width" in changed:
                beyond, have = have[:, want.shape[1] :], have[:, : want.shape[1]]
                if not bool((beyond == float("-inf")).all()):
                    raise Mismatch(f"{name} is not -inf beyond the visible entries with {changed}")
            found = unequal(name, have, want)
            if found is not None:
                raise Mismatch(f"the hint {changed} changes bits: {found}")


def _hints(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "hint" in data:
        yield {"hint": "decode" if data["hint"] == "prefill" else "prefill"}
    if "width" in data:
        yield {"width": data["width"] + 8}
    if data.get("filtered") is False:
        yield {"filtered": True}
    if data.get("greedy") is True:
        yield {"greedy": False}


def _short(index: Tensor) -> str:
    numbers = index.tolist()
    return str(numbers) if len(numbers) <= 8 else f"[{numbers[0]}, {numbers[1]}, ... {len(numbers)} of them]"


CHECKS: dict[str, Callable[[Stage], Found]] = {
    "values": values,
    "poison": poison,
    "sentinel": sentinel,
    "repeat": repeat,
    "read-only": read_only,
    "rows": rows,
}

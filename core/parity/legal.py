"""How far legal rounding alone moves the scores of a decision: the recording run again on this machine, with noise.

Every floating-point output may be a unit in its last place off, on any backend.  So the calls that reach a decision run
on this machine's processor with each output moved to a neighbour at random, and what arrives at the scores is what no
one can call a defect.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tandem.contract.types import QTensor
from tandem.parity.decisions import choices
from tandem.parity.feeds import rebuild
from tandem.parity.judge import host_plan
from tandem.parity.pairs import Side
from tandem.parity.records import Call, Record
from tandem.parity.replay import FREE, Replayer

Array = npt.NDArray[Any]
Tensor = torch.Tensor
SEEDS = (1, 2)


class LegalNoise:
    """Callable by a record of a decision: greatest change of a score by legal noise, f64 [rows]."""

    def __init__(self, side: Side) -> None:
        self._side = side

    def __call__(self, record: Record) -> Array:
        recorded = choices(record, self._side.call(record.id), self._side.find)
        if not recorded:
            return np.zeros(record.rows)
        moved = [self._scores(record, seed) for seed in SEEDS]
        greatest: Array = np.max([_distance(recorded[-1].scores, scores) for scores in moved], axis=0)
        return greatest

    def _scores(self, record: Record, seed: int) -> Array:
        """Scores of a decision in a run with noise."""
        outputs = self._run(record, seed)

        def find(number: int) -> tuple[Record, Call] | None:
            if number not in outputs:
                return self._side.find(number)
            known = self._side.records[number]
            return known, Call(rebuild(self._side.trace, known, outputs.get), outputs[number])

        here = find(record.id)
        made = [] if here is None else choices(record, here[1], find)
        return made[-1].scores if made else np.zeros(0)

    def _run(self, record: Record, seed: int) -> dict[int, dict[str, Any]]:
        """Outputs of all calls that reach a decision, and of itself, moved by noise."""
        needed = self._side.upstream(record) | {record.id}
        replayer = Replayer(self._side.trace, host_plan().backend, FREE)
        generator = torch.Generator().manual_seed(seed)
        outputs: dict[int, dict[str, Any]] = {}
        for number in sorted(needed):
            known = self._side.records[number]
            exact = replayer.run(known)
            outputs[number] = {name: shaken(value, generator) for name, value in exact.items()}
            replayer.put(known, outputs[number])
        return outputs


def _distance(one: Array, two: Array) -> Array:
    """Greatest difference of finite scores in each row."""
    if one.shape != two.shape:
        return np.zeros(len(one))
    with np.errstate(invalid="ignore"):
        difference = np.abs(one - two)
    result: Array = np.max(np.where(np.isfinite(difference), difference, 0.0), axis=1, initial=0.0)
    return result


def shaken(value: Any, generator: torch.Generator) -> Any:
    """An output with each finite floating-point number moved to one of its neighbours, or left, at random."""
    if isinstance(value, Tensor):
        return _shaken(value, generator) if value.is_floating_point() and value.numel() else value
    if isinstance(value, QTensor):
        return value  # its values follow those of the numbers it was made from
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(shaken(item, generator) for item in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not hasattr(value, "held"):
        parts = {f.name: shaken(getattr(value, f.name), generator) for f in dataclasses.fields(value)}
        return type(value)(**parts)
    return value


def _shaken(value: Tensor, generator: torch.Generator) -> Tensor:
    kinds = {torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}
    bits = value.contiguous().view(kinds[value.dtype])
    step = torch.randint(-1, 2, bits.shape, generator=generator).to(bits.dtype)
    usable = torch.isfinite(value) & (value != 0)
    moved = torch.where(usable, bits + step, bits).view(value.dtype)
    return torch.where(torch.isfinite(moved) | ~usable, moved, value)

"""Weights of a recording: which rows the calls used, and the whole or those rows as a value of the trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tandem.conformance.calls import read_weight
from tandem.contract.backend import Backend
from tandem.contract.cases import WeightInput
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat
from tandem.parity.spool import Spool
from tandem.parity.values import Deferred, PartOfWeight, encode

Tensor = torch.Tensor


class UsedWeight:
    """One packed weight; its tree is filled in by `store`.

    Args:
        weight: kept alive, so that its identity stands for it.
    """

    def __init__(self, weight: PackedWeight) -> None:
        self.weight, self.value = weight, Deferred({})
        self._rows: set[int] = set()
        self._whole = False

    def use(self, rows: Tensor) -> None:
        """A call read these rows of the first axis."""
        self._rows |= set(rows.unique().tolist())

    def use_all(self) -> None:
        """A call read it as a whole."""
        self._whole = True

    @property
    def partial(self) -> bool:
        """Whether rows were never read and can be left out."""
        return not self._whole and len(self._rows) < self.weight.shape[0]

    def nbytes(self, whole: bool) -> int:
        """Bytes that are stored."""
        weight = self.weight
        elements = int(np.prod(weight.shape, dtype=np.int64))
        size = elements * weight.fmt.bits // 8 + (elements // weight.fmt.group if weight.fmt.group else 0)
        return size if whole or not self.partial else size * len(self._rows) // weight.shape[0]

    def store(self, backend: Backend, spool: Spool, whole: bool) -> None:
        """Put it into the spool and fill in its tree."""
        plain = read_weight(backend, self.weight)
        value: WeightInput | PartOfWeight = WeightInput(self.weight.kind, plain, self.weight.shape)
        if self.partial and not whole:
            rows = torch.tensor(sorted(self._rows), dtype=torch.int64)
            scale = None if plain.scale is None else plain.scale[rows]
            kept = CanonicalWeight(plain.data[rows], scale, plain.fmt)
            value = PartOfWeight(WeightInput(self.weight.kind, kept, self.weight.shape), rows)
        self.value.tree.update(encode(value, spool.put))


class UsedWeights:
    """All weights that calls were given, by identity."""

    def __init__(self) -> None:
        self._known: dict[int, UsedWeight] = {}

    def of(self, weight: PackedWeight) -> UsedWeight:
        """The entry of a weight."""
        return self._known.setdefault(id(weight), UsedWeight(weight))

    def note(self, op: str, args: dict[str, Any], host: dict[str, Any], experts: Tensor | None) -> list[UsedWeight]:
        """The weights among a call's arguments, after noting what the call read of them.

        Args:
            args, host: arguments on the backend, and on the host.
            experts: for the mixture of experts, the routed ones; None where they are not known.
        """
        if op == "embed":
            self.of(args["table"]).use(host["ids"])
        elif op == "engram_gather":
            self.of(args["table"]).use(host["rows"] - host["first_row"])
        elif op == "moe_block" and experts is not None:
            return self._note_experts(args["weights"], experts)
        else:
            for weight in packed(list(args.values())):
                self.of(weight).use_all()
        return [self.of(weight) for weight in packed(list(args.values()))]

    def _note_experts(self, weights: Any, experts: Tensor) -> list[UsedWeight]:
        first, last = weights.local
        local = experts[(experts >= first) & (experts < last)] - first
        for weight in packed([weights]):
            # Blocks of rows that share a scale cannot be taken apart in a matrix, only in a stack of them.
            if weight is weights.w1 or weight is weights.w2 or weight is weights.w3:
                self.of(weight).use(local)
            else:
                self.of(weight).use_all()
        return [self.of(weight) for weight in packed([weights])]


def packed(values: list[Any]) -> list[PackedWeight]:
    """Packed weights among values and the fields of their groups."""
    found = []
    for value in values:
        if isinstance(value, PackedWeight):
            found.append(value)
        elif type(value).__name__ in ("MoEWeights", "HcWeights"):
            found += packed([getattr(value, name) for name in type(value).__dataclass_fields__])
    return found


def gate_values(backend: Backend, weight: PackedWeight) -> Tensor | None:
    """A routing matrix as f32 on the host; None where it is quantised."""
    return read_weight(backend, weight).data.float() if weight.fmt in (QFormat.BF16, QFormat.F32) else None

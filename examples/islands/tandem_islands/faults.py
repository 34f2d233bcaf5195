"""Faults that happen when they are told to, always in the same place.

A fault is ``KIND[:OP]@N``, several are separated by commas; N counts from 1 since the device was opened:

    alloc@N        the Nth allocation fails
    op[:OP]@N      the Nth call of any op, or of OP, fails before it has done anything
    flip[:OP]@N    bit SEED (mod its size) of the first tensor that the call returns is wrong
    slow@N         the Nth copy to the host takes `SLOW_COPY` seconds longer

Calls that a composite makes of its parts count too.  Ops that return nothing have no bit to flip.
"""

from __future__ import annotations

import re
from collections import Counter

import torch

from tandem.contract.opspec import OP_TABLE
from tandem.errors import ConfigError, TandemError

SLOW_COPY = 0.05
_FAULT = re.compile(r"(?:(alloc|slow)|(op|flip)(?::([a-z_.]+))?)@([1-9][0-9]*)")


class InjectedFault(TandemError):
    """Something failed because it was told to."""


class Faults:
    """What goes wrong in one open device.

    Args:
        text: faults as in the module docstring; empty for none.
        seed: which bit is flipped.

    Raises:
        ConfigError: the text cannot be read.
    """

    def __init__(self, text: str = "", seed: int = 0) -> None:
        self._seed = seed
        self._asked = {_read(part.strip()) for part in text.split(",") if part.strip()}
        self._seen: Counter[tuple[str, str]] = Counter()

    def due(self, kind: str, op: str = "") -> bool:
        """Count one event, and say whether it is to go wrong."""
        found = False
        for name in {"", op}:
            self._seen[kind, name] += 1
            found |= (kind, name, self._seen[kind, name]) in self._asked
        return found

    def fail(self, kind: str, what: str, op: str = "") -> None:
        """Count one event.

        Raises:
            InjectedFault: it is to fail.
        """
        if self.due(kind, op):
            where, fix = f"number {self._seen[kind, op]} since the device was opened", "open it without faults"
            raise InjectedFault(f"{what} failed", where=where, why="a fault was asked for", fix=fix)

    def flip(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor that is not empty with one bit wrong."""
        wrong = tensor.clone(memory_format=torch.contiguous_format)
        data = wrong.view(-1).view(torch.uint8)
        place = self._seed % (8 * len(data))
        data[place // 8] ^= 1 << place % 8
        return wrong


def _read(text: str) -> tuple[str, str, int]:
    found = _FAULT.fullmatch(text)
    if found is None or not (found[3] is None or found[3] in OP_TABLE):
        raise ConfigError(
            "a fault cannot be read",
            where="backend 'islands', option fault",
            why=f"'{text}' is not alloc@N, slow@N, op@N, op:OP@N, flip@N or flip:OP@N with an op of the contract",
            fix="correct it, or leave it out",
        )
    return found[1] or found[2], found[3] or "", int(found[4])

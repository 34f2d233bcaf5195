"""Memory that ops write: which arguments, which rows of them, and the junk and guards around them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from tandem.conformance.calls import SCRATCH, bits, read, read_cache, unequal
from tandem.contract.backend import Backend
from tandem.contract.cases import CacheInput, PartlyUsed, upload

Tensor = torch.Tensor

# Arguments that an op writes, and the argument that names the rows it writes (all of them where there is none).
WRITES: dict[str, tuple[tuple[str, ...], str]] = {
    "adjust_logits": (("logits",), "row"),
    "aux.accept": (("last_token", "length"), "slots"),
    "aux.commit": (("last_token", "length"), "slots"),
    "aux.draft_commit": (("drafts", "proposal", "rates"), "slots"),
    "compress_update": (("state",), "rows"),
    "engram_context": (("history",), "rows"),
    "kv_store": (("cache",), "slots"),
    "kv_write": (("cache",), "slots"),
    "mask_logits": (("logits",), ""),
    "penalize_logits": (("logits",), "row"),
    "scatter_rows": (("x",), "index"),
}
SENTINEL = 0x5A
GUARD = 2  # rows before and after


def written(op: str) -> tuple[str, ...]:
    """Names of the arguments that the op writes."""
    return WRITES[op][0] if op in WRITES else ()


def before(value: Any, poison: int) -> Tensor:
    """What an argument holds before the call, as `calls.read_argument` would give it."""
    if isinstance(value, CacheInput):
        return torch.from_numpy(value.image(poison))
    return value.filled(poison) if isinstance(value, PartlyUsed) else value


def visible(op: str, name: str, value: Tensor) -> Tensor:
    """Without the scratch row."""
    return value[:-1] if name in SCRATCH or op == "scatter_rows" else value


class Guarded:
    """A written argument between guard rows that hold the sentinel; of a cache, with one block more than it needs."""

    def __init__(self, op: str, name: str, value: Any, backend: Backend) -> None:
        self.op, self.name, self.backend = op, name, backend
        self.value = dataclasses.replace(value, num_blocks=value.num_blocks + 1) if _is_cache(value) else value
        self.held = before(self.value, SENTINEL)
        self._whole: Tensor | None = None

    @property
    def is_cache(self) -> bool:
        """Whether `value`, with its further block, is still to be materialised."""
        return _is_cache(self.value)

    def upload(self) -> Tensor:
        """The array on the backend, between its guards."""
        shape = (GUARD, *self.held.shape[1:])
        guard = torch.full((self.held[:1].numel() * self.held.element_size() * GUARD,), SENTINEL, dtype=torch.uint8)
        rows = guard.view(self.held.dtype).view(shape)
        self._whole = upload(torch.cat((rows, self.held, rows)), self.backend)
        return self._whole[GUARD:-GUARD]

    def changed(self, argument: Any, named: set[int] | None) -> str | None:
        """What was written that the call does not name; None where nothing was."""
        if self._whole is None:
            whole = read_cache(self.backend, argument)
        else:
            whole = read(self.backend, self._whole)
            for side, rows in (("before", whole[:GUARD]), ("after", whole[-GUARD:])):
                if bool((bits(rows).contiguous().view(torch.uint8) != SENTINEL).any()):
                    return f"memory {side} {self.name} was written"
            whole = whole[GUARD:-GUARD]
        now, then = (visible(self.op, self.name, side) for side in (whole, self.held))
        rest = [] if named is None else sorted(set(range(len(now))) - named)
        return unequal(f"{self.name} outside the rows that the call names", now[rest], then[rest])


def _is_cache(value: Any) -> bool:
    return isinstance(value, CacheInput)


def named_rows(op: str, data: dict[str, Any], name: str) -> set[int] | None:
    """Rows of an argument that the call may write; None for all."""
    by = WRITES[op][1]
    if not by:
        return None
    index: Tensor = data["rows"].slot if by == "rows" else data[by]
    rows = {int(i) for i in index if i >= 0}
    if name == "proposal":  # a row for each place of each slot
        return {row * data["drafts"].shape[1] + data["column"] for row in rows}
    return rows


def without_junk(op: str, data: dict[str, Any], runs: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Outputs of runs on other junk, with zeros where each run kept its own junk.

    Args:
        runs: (byte that filled open memory, outputs).
    """
    results = [dict(outputs) for _, outputs in runs]
    for name in written(op):
        kept = [
            bits(outputs[name]) == bits(visible(op, name, before(data[name], poison))) for poison, outputs in runs
        ]
        one, two = (bits(visible(op, name, before(data[name], poison))) for poison in (0x00, 0xFF))
        untouched = torch.stack([*kept, one != two]).all(0)
        for result in results:
            result[name] = torch.where(untouched, torch.zeros_like(result[name]), result[name])
    return results

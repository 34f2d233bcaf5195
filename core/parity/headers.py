"""Whether two traces may be compared at all, said before anything is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What two runs must share for a difference of their numbers to mean anything: hashes of the model's files.
NEEDED = ("sha256", "config", "tokenizer")
# What may differ, and explains differences.
TOLD = ("flags", "sampling", "prompts", "composite", "op_table")


@dataclass(frozen=True)
class HeaderMismatch:
    """A field that differs: its dotted name, both values as text, and whether it forbids the comparison."""

    field: str
    one: str
    two: str
    refuses: bool

    def text(self) -> str:
        """One line for people."""
        effect = "these runs cannot be compared" if self.refuses else "differences may come from this"
        return f"{self.field} differs: {self.one[:80]} and {self.two[:80]}; {effect}"

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {"field": self.field, "one": self.one, "two": self.two, "refuses": self.refuses}


def compare_headers(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[HeaderMismatch]:
    """Fields of two trace headers that differ and should not, what forbids the comparison first.

    Model, config and tokenizer must be the same files, and the major version of the contract the same.  Flags, sampling
    parameters, prompts and the op table are told.  A backend and its versions are meant to differ.
    """
    left, right = (header.get("model") or {} for header in (one, two))
    differ = [name for name in NEEDED if left.get(name) != right.get(name)]
    found = [_mismatch(f"model.{name}", left, right, name, True) for name in differ]
    majors = [(header.get("contract") or [None])[0] for header in (one, two)]
    if one.get("contract") != two.get("contract"):
        found.append(_mismatch("contract", one, two, "contract", majors[0] != majors[1]))
    for name in TOLD:
        left, right = (_flat(name, header.get(name)) for header in (one, two))
        differ = sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))
        found += [_mismatch(key, left, right, key, False) for key in differ]
    return sorted(found, key=lambda item: not item.refuses)


def _flat(name: str, value: Any) -> dict[str, Any]:
    """Leaves of nested objects by dotted name; which backend ran is meant to differ."""
    if not isinstance(value, dict):
        return {name: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= {} if (name, key) == ("flags", "backend") else _flat(f"{name}.{key}", item)
    return found


def _mismatch(field: str, one: Mapping[str, Any], two: Mapping[str, Any], name: str, refuses: bool) -> HeaderMismatch:
    return HeaderMismatch(field, str(one.get(name, "absent")), str(two.get(name, "absent")), refuses)

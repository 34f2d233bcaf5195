"""The parts of an EBNF grammar."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Ranges = tuple[tuple[int, int], ...]

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)  # code points that no text holds


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of inclusive ranges of code points, sorted and apart; never empty."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Seq:
    """Parts one after another; no parts match the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of at least two parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part from `least` to `most` times; None is without limit."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Ref:
    """A rule's name, and the line where it is used."""

    name: str
    line: int


Node = Chars | Seq | Alt | Repeat | Ref


def normalised(ranges: Iterable[tuple[int, int]], negated: bool = False) -> Ranges:
    """Sorted ranges that do not touch, without surrogates; `negated`: every other character."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted([*ranges, _SURROGATES] if negated else ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    if not negated:
        return _without_surrogates(merged)
    edges = [-1, *(edge for pair in merged for edge in pair), _LAST + 1]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return tuple((before + 1, after - 1) for before, after in gaps if before + 1 <= after - 1)


def _without_surrogates(ranges: list[tuple[int, int]]) -> Ranges:
    first, last = _SURROGATES
    parts = [part for low, high in ranges for part in ((low, min(high, first - 1)), (max(low, last + 1), high))]
    return tuple(dict.fromkeys((low, high) for low, high in parts if low <= high))


ANY_CHAR = Chars(normalised((), negated=True))


def references(node: Node) -> list[Ref]:
    """Every use of a rule inside a node."""
    return [inner for inner in _nodes(node) if isinstance(inner, Ref)]


def characters(node: Node) -> list[Chars]:
    """Every character class inside a node."""
    return [inner for inner in _nodes(node) if isinstance(inner, Chars)]


def _nodes(node: Node) -> list[Node]:
    found = [node]
    for inner in found:  # grows while it is walked
        if isinstance(inner, Repeat):
            found.append(inner.part)
        elif isinstance(inner, (Seq, Alt)):
            found.extend(inner.parts)
    return found

"""Position automata of the regular parts of a grammar.

A position is one character class of a pattern, written out as often as it is repeated; the automaton
moves from position to position (Glushkov, 1961).  Sets of positions and sets of characters are bit sets
in Python integers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from tandem.structured.ebnf_tree import Alt, Chars, Node, Ref, Repeat, Seq

# Characters beyond ASCII that begin with the same byte in UTF-8.
_LEAD_BLOCKS = (
    *((start, start + 0x3F) for start in range(0x80, 0x800, 0x40)),
    *((max(start, 0x800), start + 0xFFF) for start in range(0, 0x10000, 0x1000)),
    *((max(start, 0x10000), min(start + 0x3FFFF, 0x10FFFF)) for start in range(0, 0x110000, 0x40000)),
)


class Alphabet:
    """Characters grouped into the classes that a grammar tells apart; a set of classes is an integer."""

    def __init__(self, used: Iterable[Chars]) -> None:
        cuts = {edge for pair in _LEAD_BLOCKS for edge in (pair[0], pair[1] + 1)}
        for chars in used:
            cuts.update(edge for low, high in chars.ranges for edge in (low, high + 1))
        self._cuts = sorted(cuts)

    def mask(self, chars: Chars) -> int:
        """The classes that these characters are; each is inside or outside as a whole."""
        mask = 0
        for low, high in chars.ranges:
            first, last = bisect_right(self._cuts, low) - 1, bisect_right(self._cuts, high) - 1
            mask |= (1 << (last + 1)) - (1 << first)
        return mask

    def alike_at_first(self, mask: int) -> int:
        """These characters and all whose first byte in UTF-8 is one of theirs.

        A reader of bytes cannot tell them apart before it has gone on.
        """
        blocks = (self.mask(Chars((pair,))) for pair in _LEAD_BLOCKS)
        return mask | sum(block for block in blocks if block & mask)


@dataclass(slots=True)
class Automaton:
    """What a regular node matches, apart from the empty text.

    Attributes:
        masks: characters of each position.
        after: positions that may follow each position.
        first, last: positions where a match may begin and end.
        nullable: whether the empty text matches too.
    """

    masks: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    first: int = 0
    last: int = 0
    nullable: bool = True

    def first_characters(self) -> int:
        """Characters that a match may begin with."""
        return self.characters(self.first)

    def characters(self, positions: int) -> int:
        """Characters of a set of positions."""
        mask = 0
        for position in members(positions):
            mask |= self.masks[position]
        return mask


def automaton(node: Node, alphabet: Alphabet) -> Automaton:
    """The automaton of a node without references."""
    built = Automaton()
    built.nullable, built.first, built.last = _add(node, alphabet, built)
    return built


def members(positions: int) -> Iterable[int]:
    """The elements of a bit set, lowest first."""
    while positions:
        lowest = positions & -positions
        yield lowest.bit_length() - 1
        positions ^= lowest


_Ends = tuple[bool, int, int]  # nullable, first, last


def _add(node: Node, alphabet: Alphabet, built: Automaton) -> _Ends:
    if isinstance(node, Chars):
        position = 1 << len(built.masks)
        built.masks.append(alphabet.mask(node))
        built.after.append(0)
        return False, position, position
    if isinstance(node, Alt):
        ends = [_add(part, alphabet, built) for part in node.parts]
        first = last = 0
        for _, begin, end in ends:
            first, last = first | begin, last | end
        return any(nullable for nullable, _, _ in ends), first, last
    if isinstance(node, Seq):
        joined: _Ends = (True, 0, 0)
        for part in node.parts:
            joined = _join(joined, _add(part, alphabet, built), built)
        return joined
    if isinstance(node, Repeat):
        return _add_repeat(node, alphabet, built)
    raise TypeError(f"{type(node).__name__} in a regular part")


def _add_repeat(node: Repeat, alphabet: Alphabet, built: Automaton) -> _Ends:
    joined: _Ends = (True, 0, 0)
    copies = max(node.least, 1) if node.most is None else node.most
    for index in range(copies):
        nullable, first, last = _add(node.part, alphabet, built)
        if node.most is None and index == copies - 1:
            _link(last, first, built)
        joined = _join(joined, (nullable or index >= node.least, first, last), built)
    return joined


def _join(left: _Ends, right: _Ends, built: Automaton) -> _Ends:
    _link(left[2], right[1], built)
    first = left[1] | (right[1] if left[0] else 0)
    last = right[2] | (left[2] if right[0] else 0)
    return left[0] and right[0], first, last


def _link(ends: int, starts: int, built: Automaton) -> None:
    for position in members(ends):
        built.after[position] |= starts


def overextends(short: Automaton, following: int, long: Automaton) -> tuple[bool, int]:
    """Whether a reader that prefers longer matches can miss the end of `short` in favour of `long`.

    That is: some match of `short`, and then a character of `following`, begin a match of `long`.

    Returns:
        the answer, and how many pairs of positions were looked at.
    """
    todo = [(p, q) for p in members(short.first) for q in members(long.first) if short.masks[p] & long.masks[q]]
    seen = set(todo)
    while todo:
        p, q = todo.pop()
        if (short.last >> p) & 1 and long.characters(long.after[q]) & following:
            return True, len(seen)
        for next_p in members(short.after[p]):
            for next_q in members(long.after[q]):
                pair = (next_p, next_q)
                if pair not in seen and short.masks[next_p] & long.masks[next_q]:
                    seen.add(pair)
                    todo.append(pair)
    return False, len(seen)


def size(node: Node, sizes: dict[str, int]) -> int | None:
    """Positions of a node's automaton, with those of the rules it uses; None if one of these is not known."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Ref):
        return sizes.get(node.name)
    if isinstance(node, Repeat):
        inner = size(node.part, sizes)
        return None if inner is None else inner * (max(node.least, 1) if node.most is None else node.most)
    total = 0
    for part in node.parts:
        inner = size(part, sizes)
        if inner is None:
            return None
        total += inner
    return total

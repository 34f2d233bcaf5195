"""Choosing the parts of a grammar that are read as one lexeme."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.structured.ebnf_automaton import Alphabet, Automaton, automaton, overextends, size
from tandem.structured.ebnf_parse import refused
from tandem.structured.ebnf_tree import Alt, Chars, Node, Ref, Repeat, Seq, characters, references

MAX_POSITIONS = 400  # of a lexeme's automaton
MAX_NESTING = 60  # of a lexeme's parts
MAX_PARTS = 200_000  # of the translated grammar
MAX_WORK = 2_000_000  # steps of the analysis; beyond, every lexeme is a single character


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A part read as a whole, and never as the empty text; `nullable`: its node, without references, allows that."""

    node: Node
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A use of a rule that is kept as a rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Join:
    """Parts one after another, or alternatives."""

    parts: tuple[Part, ...]
    alternatives: bool


@dataclass(frozen=True, slots=True)
class Times:
    """A part from `least` to `most` times."""

    part: Part
    least: int
    most: int | None


Part = Lexeme | Rule | Join | Times
_EMPTY = Join((), alternatives=False)


class _TooMuchWork(Exception):
    pass


class Lexemes:
    """Divides a grammar into lexemes and rules over them.

    Args:
        rules: every rule that is used.
        root: name of the first.
    """

    def __init__(self, rules: dict[str, Node], root: str) -> None:
        self._rules, self._root = rules, root
        self._flat: dict[str, Node] = {}  # rules that can be part of a lexeme, without references
        self._flatten_rules()
        self._split: set[Node] = set()
        self._split_all = False
        self._parts_made = 0
        self._work = 0
        self._alphabet = Alphabet(chars for node in rules.values() for chars in characters(node))
        self._automata: dict[Node, Automaton] = {}

    def split_where_needed(self) -> dict[str, Part]:
        """Rules over lexemes none of which can swallow what follows another one."""
        while True:
            parts = self._divided()
            try:
                found = self._greedy(parts)
            except _TooMuchWork:
                self._split_all = True
                return self._divided()
            if not found:
                return parts
            self._split |= found

    def _flatten_rules(self) -> None:
        """Resolve references, innermost rules first; recursive rules never get there."""
        users: dict[str, set[str]] = {name: set() for name in self._rules}
        waits = {name: {ref.name for ref in references(node)} for name, node in self._rules.items()}
        for name, needed in waits.items():
            for other in needed:
                users[other].add(name)
        sizes: dict[str, int] = {}
        ready = [name for name, needed in waits.items() if not needed]
        while ready:
            name = ready.pop()
            count = size(self._rules[name], sizes)
            if count is None or count > MAX_POSITIONS:
                continue
            flat = _inlined(self._rules[name], self._flat)
            if _nesting(flat) > MAX_NESTING:
                continue
            sizes[name], self._flat[name] = count, flat
            for user in users[name]:
                waits[user].discard(name)
                if not waits[user]:
                    ready.append(user)

    def _divided(self) -> dict[str, Part]:
        self._parts_made = 0
        found: dict[str, Part] = {}
        todo = [self._root]
        while todo:
            name = todo.pop()
            if name not in found:
                found[name] = self._part(self._rules[name])
                todo.extend(part.name for part in _walk(found[name]) if isinstance(part, Rule))
        return found

    def _part(self, node: Node) -> Part:
        self._parts_made += 1
        if self._parts_made > MAX_PARTS:
            raise refused(1, "it is too large after its rules are put together", "use fewer or smaller rules")
        flat = self._flat_node(node)
        if flat is not None and (isinstance(flat, Chars) or not (self._split_all or flat in self._split)):
            return self._lexeme(flat)
        if isinstance(node, Ref):
            return Rule(node.name) if flat is None else self._part(flat)
        if isinstance(node, Repeat):
            return Times(self._part(node.part), node.least, node.most)
        if isinstance(node, Chars):
            return Lexeme(node)
        if flat is not None:  # a lexeme that is split: each part for itself
            return Join(tuple(self._part(part) for part in node.parts), isinstance(node, Alt))
        return Join(tuple(self._part(part) for part in self._grouped(node)), isinstance(node, Alt))

    def _grouped(self, node: Seq | Alt) -> list[Node]:
        """The parts of a node that is no lexeme, with neighbours that can be one put together."""
        groups: list[list[Node]] = []
        positions = 0
        for part in node.parts:
            flat = self._flat_node(part)
            count = None if flat is None or _nesting(flat) >= MAX_NESTING else size(flat, {})
            joins = bool(groups) and count is not None and positions + count <= MAX_POSITIONS and positions >= 0
            if joins:
                groups[-1].append(part if flat is None else flat)
                positions += count or 0
            else:
                groups.append([part if flat is None else flat])
                positions = -1 if count is None else count
        kind = type(node)
        return [group[0] if len(group) == 1 else kind(tuple(group)) for group in groups]

    def _flat_node(self, node: Node) -> Node | None:
        """The node without references, if it can be a lexeme."""
        if isinstance(node, Ref):
            return self._flat.get(node.name)
        if any(ref.name not in self._flat for ref in references(node)):
            return None
        flat = _inlined(node, self._flat)
        count = size(flat, {})
        return flat if count is not None and count <= MAX_POSITIONS and _nesting(flat) <= MAX_NESTING else None

    def _lexeme(self, flat: Node) -> Part:
        if not size(flat, {}):
            return _EMPTY
        nullable = self._automaton(flat).nullable
        return Times(Lexeme(flat, nullable), 0, 1) if nullable else Lexeme(flat)

    def _automaton(self, flat: Node) -> Automaton:
        built = self._automata.get(flat)
        if built is None:
            built = self._automata[flat] = automaton(flat, self._alphabet)
        return built

    def _greedy(self, parts: dict[str, Part]) -> set[Node]:
        """Lexemes that can swallow what follows another lexeme, or themselves."""
        following = _Following(parts, lambda node: self._automaton(node).first_characters(), self._count)
        found: set[Node] = set()
        ends = following.after_lexemes()
        longs = [node for node in ends if not isinstance(node, Chars)]
        for short, after in ends.items():
            mask = self._alphabet.alike_at_first(after)
            ours = self._automaton(short)
            starts = ours.first_characters()
            for long in longs:
                theirs = self._automaton(long)
                self._count(1)
                if long in found or not (starts & theirs.first_characters()):
                    continue
                swallows, looked_at = overextends(ours, mask, theirs)
                self._count(looked_at)
                if swallows:
                    found.add(long)
        return found

    def _count(self, steps: int) -> None:
        self._work += steps
        if self._work > MAX_WORK:
            raise _TooMuchWork


class _Following:
    """First and following characters of a divided grammar, as fixed points over its rules."""

    def __init__(self, rules: dict[str, Part], first_of: Callable[[Node], int], count: Callable[[int], None]) -> None:
        self._rules, self._first_of, self._count = rules, first_of, count
        self._first = dict.fromkeys(rules, (False, 0))  # nullable, characters
        self._after = dict.fromkeys(rules, 0)
        self._lexemes: dict[Node, int] = {}
        # Rules come behind their first users, so first characters spread fastest from the last rule on.
        self._repeat(self._update_first, list(reversed(rules)))

    def after_lexemes(self) -> dict[Node, int]:
        """For each lexeme the characters that may follow it."""
        self._repeat(self._update_after, list(self._rules))
        return self._lexemes

    def _repeat(self, update: Callable[[str], bool], names: list[str]) -> None:
        changed = True
        while changed:
            changed = False
            for name in names:
                changed |= update(name)

    def _update_first(self, name: str) -> bool:
        before = self._first[name]
        self._first[name] = self._begins(self._rules[name])
        return self._first[name] != before

    def _begins(self, part: Part) -> tuple[bool, int]:
        self._count(1)
        if isinstance(part, Lexeme):
            return False, self._first_of(part.node)
        if isinstance(part, Rule):
            return self._first[part.name]
        if isinstance(part, Times):
            nullable, first = self._begins(part.part)
            return nullable or part.least == 0, first if part.most != 0 else 0
        first = 0
        if part.alternatives:
            ends = [self._begins(inner) for inner in part.parts]
            for _, begin in ends:
                first |= begin
            return any(nullable for nullable, _ in ends), first
        for inner in part.parts:
            nullable, begin = self._begins(inner)
            first |= begin
            if not nullable:
                return False, first
        return True, first

    def _update_after(self, name: str) -> bool:
        return self._spread(self._rules[name], self._after[name])

    def _spread(self, part: Part, after: int) -> bool:
        """Tell a part what follows it; whether anything was new."""
        self._count(1)
        if isinstance(part, Lexeme):
            known = self._lexemes.get(part.node, -1)
            self._lexemes[part.node] = after if known < 0 else known | after
            return self._lexemes[part.node] != known
        if isinstance(part, Rule):
            known = self._after[part.name]
            self._after[part.name] = known | after
            return self._after[part.name] != known
        if isinstance(part, Times):
            again = self._begins(part.part)[1] if part.most is None or part.most > 1 else 0
            return self._spread(part.part, after | again)
        changed = False
        for inner in reversed(part.parts):
            changed |= self._spread(inner, after)
            if not part.alternatives:
                nullable, begin = self._begins(inner)
                after = begin | after if nullable else begin
        return changed


def _walk(part: Part) -> list[Part]:
    """A part and all inside it."""
    found = [part]
    for inner in found:  # grows while it is walked
        if isinstance(inner, Join):
            found.extend(inner.parts)
        elif isinstance(inner, Times):
            found.append(inner.part)
    return found


def _inlined(node: Node, flat: dict[str, Node]) -> Node:
    if isinstance(node, Chars):
        return node
    if isinstance(node, Ref):
        return flat[node.name]
    if isinstance(node, Repeat):
        return Repeat(_inlined(node.part, flat), node.least, node.most)
    return type(node)(tuple(_inlined(part, flat) for part in node.parts))


def _nesting(node: Node) -> int:
    if isinstance(node, Repeat):
        return 1 + _nesting(node.part)
    if isinstance(node, (Seq, Alt)):
        return 1 + max((_nesting(part) for part in node.parts), default=0)
    return 1

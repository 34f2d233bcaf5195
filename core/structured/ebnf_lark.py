"""Writing a divided grammar in Lark."""

from __future__ import annotations

from tandem.structured.ebnf_lexemes import Lexeme, Part, Rule, Times
from tandem.structured.ebnf_tree import Alt, Chars, Node, Repeat, Seq


def write_lark(rules: dict[str, Part], root: str) -> str:
    """Lark text; rules become `start`, `r1`, `r2`..., lexemes `L0`, `L1`..., in the order of their use."""
    return _Writer(rules, root).text()


class _Writer:
    def __init__(self, rules: dict[str, Part], root: str) -> None:
        self._rules = rules
        others = [name for name in rules if name != root]
        self._names = {root: "start"} | {name: f"r{index + 1}" for index, name in enumerate(others)}
        self._lexemes: dict[Lexeme, str] = {}

    def text(self) -> str:
        lines = [f"{self._names[name]}: {self._part(part)}" for name, part in self._rules.items()]
        for lexeme, name in self._lexemes.items():
            # The rules leave a part out where it may be empty; a lexeme takes at least one character.
            lines.append(f"{name}: /{_regex(lexeme.node)}/{' & /(?s:.+)/' if lexeme.nullable else ''}")
        return "\n".join(lines) + "\n"

    def _part(self, part: Part) -> str:
        if isinstance(part, Lexeme):
            return self._lexemes.setdefault(part, f"L{len(self._lexemes)}")
        if isinstance(part, Rule):
            return self._names[part.name]
        if isinstance(part, Times):
            inner = self._part(part.part)
            return f"({inner}){_count(part.least, part.most)}" if part.most != 0 else '""'
        if not part.parts:
            return '""'
        between = " | " if part.alternatives else " "
        return f"({between.join(self._part(inner) for inner in part.parts)})"


def _count(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    return short or (f"{{{least},}}" if most is None else f"{{{least},{most}}}")


def _regex(node: Node) -> str:
    if isinstance(node, Chars):
        if len(node.ranges) == 1 and node.ranges[0][0] == node.ranges[0][1]:
            return _character(node.ranges[0][0])
        return "[" + "".join(f"{_character(low)}-{_character(high)}" for low, high in node.ranges) + "]"
    if isinstance(node, Repeat):
        return f"(?:{_regex(node.part)}){_count(node.least, node.most)}"
    if isinstance(node, Alt):
        return "(?:" + "|".join(_regex(part) for part in node.parts) + ")"
    if isinstance(node, Seq):
        return "".join(_regex(part) for part in node.parts)
    raise TypeError(f"{type(node).__name__} in a lexeme")


def _character(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:X}}}"

"""Random context-free grammars with a recogniser of their own."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

ALPHABET = "abcé"


@dataclass(frozen=True)
class Node:
    """`kind` is chars, seq, alt, repeat or rule; `text` holds the characters or the rule's name."""

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()
    least: int = 0
    most: int | None = None


@dataclass(frozen=True)
class Grammar:
    """Rules by name; the first is `root`."""

    rules: dict[str, Node]

    def ebnf(self) -> str:
        """As EBNF text; every second rule goes on over several lines."""
        lines = []
        for index, (name, node) in enumerate(self.rules.items()):
            body = _ebnf(node)
            lines.append(f"{name} ::= " + (body.replace(" | ", "\n  | ") + "  # more" if index % 2 else body))
        return "\n".join(lines)

    def lark(self) -> str:
        """As Lark text in which every lexeme is one character."""
        rename = {name: "start" if name == "root" else name.replace("-", "_") for name in self.rules}
        return "\n".join(f"{rename[name]}: {_lark(node, rename)}" for name, node in self.rules.items())

    def matches(self, text: str) -> bool:
        """By the definition of each part: the places where it can end."""
        known: dict[tuple[Node, int], frozenset[int]] = {}

        def ends(node: Node, at: int) -> frozenset[int]:
            key = (node, at)
            if key not in known:
                known[key] = frozenset(_ends(node, at))
            return known[key]

        def many(node: Node, starts: Iterable[int]) -> set[int]:
            return {end for start in starts for end in ends(node, start)}

        def _ends(node: Node, at: int) -> Iterable[int]:
            if node.kind == "chars":
                return [at + 1] if at < len(text) and text[at] in node.text else []
            if node.kind == "rule":
                return ends(self.rules[node.text], at)
            if node.kind == "alt":
                return {end for part in node.parts for end in ends(part, at)}
            here = {at}
            if node.kind == "seq":
                for part in node.parts:
                    here = many(part, here)
                return here
            for _ in range(node.least):
                here = many(node.parts[0], here)
            found, turns = set(here), node.least
            while here and (node.most is None or turns < node.most):
                here = many(node.parts[0], here) - found
                found |= here
                turns += 1
            return found

        return len(text) in ends(self.rules["root"], 0)


def random_grammar(rng: random.Random) -> Grammar:
    """Up to four rules; one may use itself or an earlier one behind a character, never at its left edge."""
    names = ["root", "item", "more-of", "x_1"][: rng.randint(1, 4)]
    return Grammar({name: _node(rng, 3, names, index) for index, name in enumerate(names)})


def _node(rng: random.Random, depth: int, names: list[str], index: int) -> Node:
    later = names[index + 1 :]
    kinds = ["chars", "chars", "word"]
    if depth:
        kinds += ["seq", "seq", "alt", "repeat", "behind"] + ["rule"] * bool(later)
    kind = rng.choice(kinds)
    if kind == "chars":
        return Node("chars", "".join(sorted(rng.sample(ALPHABET, rng.randint(1, 3)))))
    if kind == "word":
        return Node("seq", parts=tuple(Node("chars", rng.choice(ALPHABET)) for _ in range(rng.randint(0, 3))))
    if kind == "rule":
        return Node("rule", rng.choice(later))
    if kind == "behind":  # a use that may be recursive
        optional = Node("repeat", parts=(Node("rule", rng.choice(names)),), least=0, most=1)
        return Node("seq", parts=(Node("chars", rng.choice(ALPHABET)), optional))
    parts = tuple(_node(rng, depth - 1, names, index) for _ in range(rng.randint(2, 3)))
    if kind == "repeat":
        least, most = rng.choice([(0, 1), (0, None), (1, None), (2, 2), (1, 3), (2, None)])
        return Node("repeat", parts=parts[:1], least=least, most=most)
    return Node(kind, parts=parts)


def _count(node: Node) -> str:
    short = {(0, 1): "?", (0, None): "*", (1, None): "+", (2, 2): "{2}", (2, None): "{2,}"}
    return short.get((node.least, node.most), f"{{{node.least},{node.most}}}")


def _ebnf(node: Node) -> str:
    if node.kind == "chars":
        return f'"{node.text}"' if len(node.text) == 1 else f"[{node.text}]"
    if node.kind == "rule":
        return node.text
    if node.kind == "repeat":
        return f"({_ebnf(node.parts[0])}){_count(node)}"
    if node.kind == "seq" and all(part.kind == "chars" and len(part.text) == 1 for part in node.parts):
        return '"' + "".join(part.text for part in node.parts) + '"'
    return "(" + (" | " if node.kind == "alt" else " ").join(_ebnf(part) for part in node.parts) + ")"


def _lark(node: Node, rename: dict[str, str]) -> str:
    if node.kind == "chars":
        return f"/[{node.text}]/"
    if node.kind == "rule":
        return rename[node.text]
    if node.kind == "repeat":
        return f"({_lark(node.parts[0], rename)}){_count(node)}"
    parts = [_lark(part, rename) for part in node.parts] or ['""']
    return "(" + (" | " if node.kind == "alt" else " ").join(parts) + ")"

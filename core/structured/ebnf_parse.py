"""Reading EBNF text into rules."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping

from tandem.errors import RequestError
from tandem.structured.ebnf_tree import ANY_CHAR, Alt, Chars, Node, Ref, Repeat, Seq, normalised

MAX_RULES = 2000
MAX_DEPTH = 64
MAX_COUNT = 100_000

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_RULE_HEAD = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_-]*)(?:[ \t\r\n]|#[^\n]*)*::=")
_COUNTS = re.compile(r"\{\s*([0-9]+)\s*(,?)\s*([0-9]*)\s*\}")
_SIMPLE_ESCAPES = {"n": 10, "r": 13, "t": 9, "b": 8, "f": 12, "v": 11, "a": 7, "e": 27, "0": 0}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_FOREIGN = {
    "'": "a string in single quotes",
    "/": "a regular expression /.../",
    "<": "a token reference <...>",
    "!": "a negated token !<...>",
    "=": "the rule operator '='",
    ":": "the rule operator ':'",
    "@": "a directive @...",
    "%": "a directive %...",
    "&": "an intersection &",
    "~": "a negation ~",
    "-": "a difference -",
    ",": "a comma between parts",
    ";": "a semicolon behind a rule",
}


def parse_ebnf(text: str) -> Mapping[str, Node]:
    """Rules by name, in the order of the text.

    Raises:
        RequestError: names what cannot be read and its line.
    """
    return _Parser(text).rules()


def refused(line: int, why: str, fix: str) -> RequestError:
    """The error of a grammar that is not translated."""
    return RequestError("the EBNF grammar cannot be translated", where=f"line {line}", why=why, fix=fix)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._line_ends = [at for at, char in enumerate(text) if char == "\n"]

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self._skip()
        while self._at < len(self._text):
            head = _RULE_HEAD.match(self._text, self._at)
            if head is None:
                if named := _NAME.match(self._text, self._at):
                    self._take(len(named[0]))
                raise self._unexpected("'::=' behind a rule's name" if named else "a rule 'name ::= ...'")
            name = head[1]
            if name in found:
                raise self._refused(f"the rule '{name}' is defined twice", "join the two with |")
            if len(found) == MAX_RULES:
                raise self._refused(f"there are more than {MAX_RULES} rules", "use fewer rules")
            self._at = head.end()
            self._skip()
            found[name] = self._alternatives()
            if self._char_at() == ")":
                raise self._refused("a ')' has no '('", "remove it")
        return found

    def _alternatives(self) -> Node:
        parts = [self._sequence()]
        while self._char_at() == "|":
            self._take(1)
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Alt(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while (char := self._char_at()) and char not in "|)" and not _RULE_HEAD.match(self._text, self._at):
            parts.append(self._repeated(self._part(char)))
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def _part(self, char: str) -> Node:
        if char == '"':
            return self._string()
        if char == "[":
            return self._char_class()
        if char == "(":
            return self._group()
        if char == ".":
            self._take(1)
            return ANY_CHAR
        name = _NAME.match(self._text, self._at)
        if name is None:
            raise self._unexpected("a string, a character class, a group or a rule's name")
        if self._text.startswith("(", name.end()):
            raise self._refused(f"the macro {name[0]}(...) is not supported", "write it as rules")
        line = self._line()
        self._take(len(name[0]))
        return Ref(name[0], line)

    def _group(self) -> Node:
        line = self._line()
        if self._text.startswith("(=", self._at):
            raise self._refused("a look-ahead (=...) is not supported", "write the grammar without it")
        if self._depth == MAX_DEPTH:
            raise self._refused(f"groups are nested more than {MAX_DEPTH} deep", "give the inner ones names")
        self._take(1)
        self._depth += 1
        inner = self._alternatives()
        self._depth -= 1
        if self._char_at() != ")":
            raise refused(line, "a '(' is not closed", "add the ')'")
        self._take(1)
        return inner

    def _repeated(self, part: Node) -> Node:
        char = self._char_at()
        if not char or char not in "*+?{":
            return part
        if char == "{":
            least, most = self._counts()
        else:
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
            self._take(1)
        if (char := self._char_at()) and char in "*+?{":
            raise self._refused("a repetition follows a repetition", "put the inner one in a group")
        return Repeat(part, least, most)

    def _counts(self) -> tuple[int, int | None]:
        found = _COUNTS.match(self._text, self._at)
        if found is None:
            raise self._refused("a repetition {...} cannot be read", "write {n}, {n,} or {n,m}")
        if max(len(found[1]), len(found[3])) > 9 or max(int(found[1]), int(found[3] or 0)) > MAX_COUNT:
            raise self._refused(f"a repetition is above {MAX_COUNT}", "repeat less often, or without limit")
        least = int(found[1])
        most = least if not found[2] and not found[3] else int(found[3]) if found[3] else None
        if most is not None and most < least:
            raise self._refused(f"the repetition {found[0]} has no number", "write the smaller one first")
        self._take(len(found[0]))
        return least, most

    def _string(self) -> Node:
        line = self._line()
        self._at += 1
        chars: list[Node] = []
        while (char := self._char_at()) != '"':
            if char in ("", "\n"):
                raise refused(line, "a string is not closed", 'add the "')
            code = self._character()
            chars.append(Chars(((code, code),)))
        self._take(1)
        return chars[0] if len(chars) == 1 else Seq(tuple(chars))

    def _char_class(self) -> Node:
        line = self._line()
        self._at += 1
        negated = self._char_at() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while (char := self._char_at()) != "]":
            if char in ("", "\n"):
                raise refused(line, "a character class is not closed", "add the ]")
            low = high = self._character()
            if self._char_at() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._character()
            if high < low:
                raise refused(line, "a character range runs backwards", "write the lower character first")
            ranges.append((low, high))
        self._take(1)
        found = normalised(ranges, negated)
        if not ranges or not found:
            raise refused(line, "a character class is empty", "name a character in it, or use . for any")
        return Chars(found)

    def _character(self) -> int:
        char = self._text[self._at]
        self._at += 1
        if char != "\\":
            return ord(char)
        kind = self._char_at()
        self._at += 1
        if kind in _HEX_DIGITS:
            digits = self._text[self._at : self._at + _HEX_DIGITS[kind]]
            if re.fullmatch(f"[0-9A-Fa-f]{{{_HEX_DIGITS[kind]}}}", digits) is None:
                raise self._refused(f"the escape \\{kind}{digits} cannot be read", f"give {_HEX_DIGITS[kind]} digits")
            self._at += len(digits)
            code = int(digits, 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise self._refused(f"the escape \\{kind}{digits} is no character", "give a Unicode character")
            return code
        if kind in _SIMPLE_ESCAPES:
            return _SIMPLE_ESCAPES[kind]
        if kind and not kind.isalnum() and kind.isascii() and kind.isprintable():
            return ord(kind)
        raise self._refused(f"the escape \\{kind} is not supported", "write the characters themselves")

    def _char_at(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, count: int) -> None:
        self._at += count
        self._skip()

    def _skip(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _line(self) -> int:
        return bisect_left(self._line_ends, self._at) + 1

    def _unexpected(self, expected: str) -> RequestError:
        char = self._char_at()
        if char in _FOREIGN:
            return self._refused(f"{_FOREIGN[char]} is not supported", f"write {expected}")
        return self._refused(f"found {char!r} instead of {expected}", "correct the grammar")

    def _refused(self, why: str, fix: str) -> RequestError:
        return refused(self._line(), why, fix)

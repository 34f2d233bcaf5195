"""EBNF grammars, as written for GBNF and XGrammar, in Lark for llguidance.

Read:
  name ::= body        rules; `root` is the start.  A body goes on over line ends up to the next `name ::=`.
                       Names: letters, digits, `_`, and `-` inside.
  "text"               escapes \\n \\r \\t \\b \\f \\v \\a \\e \\0 \\xHH \\uHHHH \\UHHHHHHHH, and \\ before punctuation
  [a-z_] [^"\\\\]        one character (code point) inside or outside; `^` matches line ends too; same escapes
  .                    any character, line ends included
  a b, a | b, ( )      sequence, alternatives, group; an alternative may be empty
  * + ? {n} {n,} {n,m} repetition of the part before
  # to the line end    comment
Refused by name: look-ahead (=...), macros such as TagDispatch(...), token references <...>, strings in single
quotes, regular expressions /.../, every other operator, unknown escapes, undefined or doubled rules, no `root`.

The language is kept exactly.  llguidance splits text into lexemes and prefers the longest; a lexeme that
could swallow what belongs to the next one would lose texts.  So the largest parts without recursion become
lexemes, and one that could swallow too much is split, down to single characters where need be.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandem.structured.ebnf_lark import write_lark
from tandem.structured.ebnf_lexemes import Lexemes
from tandem.structured.ebnf_parse import parse_ebnf, refused
from tandem.structured.ebnf_tree import Node, references

ROOT = "root"


def ebnf_to_lark(text: str) -> str:
    """The same language as a Lark grammar for llguidance.

    Raises:
        RequestError: names the construct that cannot be translated and its line.
    """
    try:
        rules = _reachable(parse_ebnf(text))
        return write_lark(Lexemes(rules, ROOT).split_where_needed(), ROOT)
    except RecursionError as error:
        raise refused(1, "its parts are nested too deeply", "write it flatter, with more rules") from error


def _reachable(rules: Mapping[str, Node]) -> dict[str, Node]:
    """The rules that `root` uses."""
    if ROOT not in rules:
        raise refused(1, f"there is no rule '{ROOT}'", f"name the first rule {ROOT}")
    for node in rules.values():
        for ref in references(node):
            if ref.name not in rules:
                raise refused(ref.line, f"the rule '{ref.name}' is not defined", "define it, or correct the name")
    found = {ROOT: rules[ROOT]}
    todo = [rules[ROOT]]
    while todo:
        for ref in references(todo.pop()):
            if ref.name not in found:
                found[ref.name] = rules[ref.name]
                todo.append(rules[ref.name])
    return found

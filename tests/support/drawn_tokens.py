"""Tokens that an emulated backend draws from given logits, seeds and positions.

    python -m support.drawn_tokens BACKEND FILE

writes them as JSON; a process of its own for each backend, which emulates from its start.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from support.emulated import opened

import tandem.ops  # noqa: F401  (declares every op)
from tandem.contract.cases import materialise
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan
from tandem.ops.sample import normal_logits, sampling_arguments
from tandem.ops.spec_verify import verify_arguments

SEEDS = (0, 1, 2)
VOCABULARY = 4099  # no multiple of any vector width, and several tiles of every kernel


def calls() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(op, name, arguments): every conformance case of the ops that draw, and rows over a larger vocabulary."""
    for op in ("sample", "draft_sample", "spec_verify"):
        for case in OP_TABLE[op].cases:
            yield from ((op, f"{case.name} {seed}", case.build(seed)) for seed in SEEDS)
    for seed in SEEDS:
        logits = normal_logits(seed, 24, VOCABULARY)
        numbers = {"seed": torch.arange(24) * 7919 - seed, "position": torch.arange(24) * 131}
        for top_p, top_k in ((1.0, -1), (0.9, -1), (0.8, 40)):
            yield "sample", f"large {top_p} {top_k} {seed}", sampling_arguments(logits, 0.8, top_p, top_k) | numbers
        yield "spec_verify", f"large {seed}", verify_arguments(seed, 24, VOCABULARY)
        yield "spec_verify", f"large coupled {seed}", verify_arguments(seed, 24, VOCABULARY, coupled=True)


def drawn(name: str) -> dict[str, list[list[int]]]:
    """By op and call: the tokens, and for `spec_verify` which drafts were taken."""
    backend = opened(name)
    plan, found = Plan(backend), {}
    for op, told, arguments in calls():
        outputs = plan.bind(op, told)(**materialise(arguments, backend, 0))
        kept = outputs[:2] if op == "spec_verify" else outputs[:1]
        found[f"{op} {told}"] = [backend.to_host(one).result().tolist() for one in kept]
    return found


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(drawn(sys.argv[1])), encoding="utf-8")

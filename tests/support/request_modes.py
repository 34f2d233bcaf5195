"""Ways to run the same requests, and random requests that use every sampling parameter."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from support.engines import ROOMY, tokens

from tandem.config import load_config
from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput
from tandem.sampling.params import SamplingParams

COUPLED = {"speculation.draft_tokens": 3, "speculation.accept": "coupled"}
REJECTION = {"speculation.draft_tokens": 3}
CHUNKED = {"scheduler.max_chunk": 7, "scheduler.max_tokens_per_step": 32}
TIGHT = {"cache.num_blocks": 12, "scheduler.max_chunk": 9, "scheduler.max_tokens_per_step": 32}
OVERLAP = {"scheduler.overlap": "on"}
PREFIX = {"cache.prefix": "on"}
Requests = Sequence[tuple[list[int], SamplingParams]]
# Modes of one group give the same tokens; greedy requests give the same in all.
EXACT: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "coupled": COUPLED,
    "overlap": OVERLAP,
    "chunked": CHUNKED,
    "preempted": TIGHT,
    "prefix": PREFIX,
    "overlap-coupled-chunked-prefix": {**OVERLAP, **COUPLED, **CHUNKED, **PREFIX},
    "overlap-coupled-preempted": {**OVERLAP, **COUPLED, **TIGHT},
    "all-prefix-preempted": {**OVERLAP, **COUPLED, **TIGHT, **PREFIX},
}
DRAFTED: Mapping[str, Mapping[str, Any]] = {
    "rejection": REJECTION,
    "rejection-overlap": {**REJECTION, **OVERLAP},
    "rejection-chunked-prefix": {**REJECTION, **CHUNKED, **PREFIX},
    "rejection-overlap-preempted": {**REJECTION, **OVERLAP, **TIGHT},
}


def engine(path: Path, options: Mapping[str, Any]) -> LLM:
    return LLM(config=load_config(env={}, args={**ROOMY, **options, "model.path": str(path)}))


def random_params(source: random.Random, words: Sequence[str], longest: int) -> SamplingParams:
    """Every parameter is on in about a third of the requests; ``words`` are likely pieces of texts."""

    def some(value: Any, default: Any, share: float = 0.35) -> Any:
        return value if source.random() < share else default

    most = source.randint(4, longest)
    forced = [source.choice((-1, source.randrange(3, 470))) for _ in range(source.randint(1, 6))]
    return SamplingParams(
        temperature=source.choice((0.0, 0.7, 1.0, 1.4)),
        top_p=some(source.uniform(0.3, 1), 1.0),
        top_k=some(source.randint(1, 60), -1),
        min_p=some(source.uniform(0, 0.2), 0.0),
        max_tokens=most,
        min_tokens=some(source.randint(1, most), 0),
        stop=tuple(source.sample(words, 2)) if source.random() < 0.3 else (),
        stop_token_ids=some(tuple(source.sample(range(3, 470), 40)), ()),
        ignore_eos=source.random() < 0.5,
        seed=source.getrandbits(64),
        logprobs=some(source.randint(0, 3), None),
        processed_logprobs=source.random() < 0.5,
        logit_bias=some({source.randrange(512): source.choice((3.0, -2.0, float("-inf"))) for _ in range(4)}, {}),
        repetition_penalty=some(source.uniform(0.7, 1.6), 1.0),
        presence_penalty=some(source.uniform(-1, 2), 0.0),
        frequency_penalty=some(source.uniform(-1, 2), 0.0),
        bad_words=tuple(source.sample(words, 3)) if source.random() < 0.35 else (),
        prompt_logprobs=some(source.randint(0, 2), None, 0.25),
        forced_token_ids=some(tuple(forced), (), 0.25),
        priority=source.randint(-1, 1),
    )


def random_prompts(source: random.Random, count: int) -> list[list[int]]:
    """Some begin alike, so that later ones find blocks in a prefix cache."""
    shared = tokens(source.randrange(1000), 40)
    return [
        [*(shared[: source.choice((0, 16, 33, 40))]), *tokens(source.randrange(1000), source.randint(1, 30))]
        for _ in range(count)
    ]


def result(output: RequestOutput) -> tuple[Any, ...]:
    """All of an output that a mode must not change."""
    assert output.error is None, output.error
    return (
        output.token_ids,
        output.text,
        output.finish_reason,
        output.stop_reason,
        output.logprobs,
        output.prompt_logprobs,
    )


def with_good_drafts(path: Path, work: Requests, want: Sequence[tuple[Any, ...]], seed: int) -> list[tuple[Any, ...]]:
    """Coupled drafts that are mostly right, put in place of the model's: rows behind drafts decide most tokens."""
    source, llm = random.Random(seed), engine(path, COUPLED)
    parts, found = llm._assembly, dict[int, RequestOutput]()
    assert parts.book is not None and parts.builder.drafts is not None
    ids = [llm.engine.add_request(prompt, params) for prompt, params in work]
    while not llm.engine.idle:
        found |= {piece.request_id: piece.output for piece in llm.engine.step() if piece.output is not None}
        for slot, live in llm.engine._live.items():
            drawn = len(live.token_ids)
            right = [*want[ids.index(live.request_id)][0][drawn : drawn + 3], 5, 5, 5][:3]
            drafts = [source.randrange(512) if source.random() < 0.1 else token for token in right]
            if drawn:
                parts.book.tokens[slot] = drafts
                parts.builder.drafts.tokens[slot] = torch.tensor(drafts, dtype=torch.int32)
                parts.builder.drafts.rates[slot] = torch.tensor((0.9, 0.8, 0.7))
    stats = parts.book.stats
    assert stats.accepted > 0.5 * stats.tested > 0
    return [result(found[request]) for request in ids]

"""One hash of all tokens and logprobs, however requests arrive, are cut, cached, put back, drafted and overlapped."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import ROOMY, Job, tokens
from support.shipped import text_ids

from tandem.config import load_config
from tandem.engine.engine import Engine
from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput, TokenLogprob
from tandem.sampling.params import SamplingParams


@dataclass(frozen=True)
class Load:
    """Requests and the sizes that runs choose from.

    Args:
        path: checkpoint; None for the model that comes with the package.
        jobs: the requests.
        drafts: most drafts.
        block: tokens in a block.
        blocks: blocks in a small pool and in a roomy one.
        accept: how drafts are taken; by rejection their number belongs to the request, so it stays the same.
    """

    path: Path | None
    jobs: Sequence[Job]
    drafts: int
    block: int
    blocks: tuple[int, int]
    accept: str = "coupled"


def mixed_jobs(prompts: Sequence[Sequence[int]], length: int) -> list[Job]:
    """A third of them greedy, the others drawn in three ways, all with logprobs."""
    ways: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.0, "presence_penalty": 0.5},
        {"temperature": 0.7, "top_k": 20, "processed_logprobs": True},
        {"temperature": 0.0, "min_tokens": 3},
        {"temperature": 1.2, "min_p": 0.02, "frequency_penalty": 0.3},
    ]
    return [
        Job(prompt, SamplingParams(seed=n, max_tokens=length - n % 5, logprobs=n % 3, **ways[n % len(ways)]))
        for n, prompt in enumerate(prompts)
    ]


def options(load: Load, source: random.Random, run: int) -> dict[str, Any]:
    """Sizes and modes of one run; the first runs see to it that every mode occurs."""
    rows = source.choice((64, 96, 160))
    drafts = (load.drafts, 0, load.drafts, source.randint(1, load.drafts))
    given = {
        "scheduler.max_slots": source.choice((8, 10)),
        "scheduler.max_tokens_per_step": rows,
        "scheduler.max_chunk": source.choice((16, 33, 64)),
        "scheduler.overlap": ("off", "on")[run % 2],
        "cache.block_size": load.block,
        "cache.window_block": source.choice((4, 8)),
        "cache.prefix": ("on", "on", "off")[run % 3],
        "cache.num_blocks": load.blocks[run % 5 == 4],
        "speculation.draft_tokens": load.drafts if load.accept == "rejection" else drafts[run % 4],
        "speculation.accept": load.accept,
    }
    return given | ({} if load.path is None else {"model.path": str(load.path)})


def outputs(engine: Engine, jobs: Sequence[Job], source: random.Random) -> list[RequestOutput]:
    """Results in the order of the jobs, which arrive in another order and with gaps."""
    order = list(range(len(jobs)))
    source.shuffle(order)
    arrivals, ids, found = sorted(source.randint(0, len(jobs) // 3) for _ in jobs), {}, {}
    now = 0
    while len(ids) < len(jobs) or not engine.idle:
        while len(ids) < len(jobs) and arrivals[len(ids)] <= now:
            place = order[len(ids)]
            ids[place] = engine.add_request(jobs[place].prompt, jobs[place].params)
        for piece in engine.step():
            if piece.output is not None:
                found[piece.request_id] = piece.output
        now += 1
    return [found[ids[place]] for place in range(len(jobs))]


def hash_of(results: Sequence[RequestOutput]) -> str:
    """Of all tokens, texts, reasons and logprobs, bit for bit."""
    digest = hashlib.sha256()
    for result in results:
        assert result.error is None and result.logprobs is not None
        digest.update(repr((result.token_ids, result.text, result.finish_reason, result.stop_reason)).encode())
        for item in result.logprobs:
            digest.update(repr(astuple(item)).encode())  # repr of a float gives all its bits
    return digest.hexdigest()


@dataclass
class Totals:
    """What happened over the runs."""

    preemptions: int = 0
    hits: int = 0
    accepted: int = 0


def hashes(load: Load, runs: int) -> tuple[set[str], Totals]:
    found, totals = set(), Totals()
    for run in range(runs):
        source = random.Random(run)
        llm = LLM(config=load_config(env={}, args={**ROOMY, **options(load, source, run)}))
        found.add(hash_of(outputs(llm.engine, load.jobs, source)))
        parts = llm.engine._parts
        totals.preemptions += llm.engine.stats.preemptions
        totals.hits += 0 if parts.prefix is None else parts.prefix.stats().hits
        totals.accepted += 0 if parts.book is None else parts.book.stats.accepted
        llm.close()
    return found, totals


def test_twelve_requests_in_three_ways(tiny: Path) -> None:
    """Two groups of prompts that begin alike."""
    shared = (tokens(31, 18), tokens(32, 9))
    prompts = [[*shared[n % 2], *tokens(40 + n, 1 + n)] if n % 3 else tokens(60 + n, 2 + n) for n in range(12)]
    found, totals = hashes(Load(tiny, mixed_jobs(prompts, 7), 3, 8, (10, 80)), 3)
    assert len(found) == 1
    assert totals.preemptions > 0 and totals.hits > 0 and totals.accepted > 0


def many_prompts() -> list[list[int]]:
    """A third of them begins with the same forty tokens, another with the next forty."""
    starts, source = (text_ids(40), text_ids(41, 40), []), np.random.default_rng(9)
    return [[*starts[n % 3], *text_ids(int(source.integers(2, 30)), int(source.integers(0, 80)))] for n in range(64)]


@pytest.mark.slow
@pytest.mark.parametrize(("accept", "runs"), [("coupled", 20), ("rejection", 6)])
def test_sixty_four_requests_of_the_shipped_model(accept: str, runs: int) -> None:
    load = Load(None, mixed_jobs(many_prompts(), 32), 5, 16, (14, 160), accept)
    found, totals = hashes(load, runs)
    assert len(found) == 1
    assert totals.preemptions > 20 and totals.hits > 100 and totals.accepted > 1000


def test_the_hash_sees_a_changed_bit() -> None:
    """Of tokens, text or logprob."""
    def result(text: str = "a", token: int = 5, raw: float = -1.0) -> list[RequestOutput]:
        return [RequestOutput(0, (1,), (token,), text, "stop", None, (TokenLogprob(token, raw, None),))]

    changed = [result("b"), result(token=6), result(raw=float(np.nextafter(np.float32(-1), np.float32(0))))]
    assert len({hash_of(one) for one in (result(), *changed)}) == 4

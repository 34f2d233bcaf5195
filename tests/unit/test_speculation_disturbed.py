"""Steps that fail and requests that move while drafts are under way: every bit stays what it would have been."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engines import Job, tokens
from support.lossless import Bench, Forger, Oracle, Seen, mixed, same_all_seen, texts_of

from tandem.engine.request_state import RequestState
from tandem.errors import RequestError
from tandem.sampling.params import SamplingParams


class Fault(RuntimeError):
    """What a device raises."""


def asks(source: random.Random, temperature: float) -> list[Job]:
    shared, found = tokens(source.randint(0, 99), 40), []
    for n in range(6):
        prompt = shared[: source.randint(1, 40)] + tokens(n, source.randint(0, 12))
        params = SamplingParams(
            temperature=temperature * (n % 2), seed=n, max_tokens=source.randint(5, 12), ignore_eos=True, logprobs=n % 2
        )
        found.append(Job(prompt, params, arrival=source.randint(0, 6)))
    return found


def break_steps(bench: Bench, source: random.Random) -> Callable[[], int]:
    """Let either part of a step fail now and then, before or after its work; returns a counter."""
    runner, count = bench.parts.runner, [0]
    for name in ("_forward", "_draw"):
        real = getattr(runner, name)

        def failing(*given: Any, real: Any = real) -> Any:
            late = source.random() < 0.5
            fails = source.random() < 0.08
            result = real(*given) if late or not fails else None
            if fails:
                count[0] += 1
                raise Fault("the device gave up")
            return result

        setattr(runner, name, failing)
    return lambda: count[0]


def move(bench: Bench, request: int, source: random.Random) -> int:
    """Export a request, cancel it and import it again, with its caches or without; its id from then on."""
    try:
        state = bench.engine.export_request(request, source.random() < 0.7)
    except RequestError:
        return request  # it has ended
    assert bench.engine.cancel(request) is not None
    moved = bench.engine.import_request(RequestState.from_bytes(state.to_bytes()))
    bench.seen[moved] = bench.seen[request]
    return moved


def disturbed(bench: Bench, jobs: list[Job], source: random.Random) -> tuple[list[Seen], int]:
    """Run jobs while steps fail and requests move; what they were given, and how many moved."""
    ids: dict[int, int] = {}
    now = moves = 0
    while len(ids) < len(jobs) or not bench.engine.idle:
        for place, job in enumerate(jobs):
            if place not in ids and job.arrival <= now and bench.parts.table.num_free:
                ids[place] = bench.add(job)
        try:
            bench.step()
            if ids and source.random() < 0.2:
                place = source.choice(list(ids))
                moved = move(bench, ids[place], source)
                moves, ids[place] = moves + (moved != ids[place]), moved
        except Fault:
            bench.after_step()
        now += 1
    bench.check_clean()
    return [bench.seen[ids[place]] for place in range(len(jobs))], moves


@pytest.mark.slow
@pytest.mark.parametrize("accept", ["coupled", "rejection"])
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_faults_and_moves(tiny: Path, accept: str, overlap: str) -> None:
    failed = moved = accepted = 0
    for seed in range(6):
        source = random.Random(seed)
        jobs = asks(source, 0.8 if accept == "coupled" else 1.5)
        drafts: dict[str, Any] = {"speculation.draft_tokens": 3, "speculation.accept": accept}
        # By rejection a text depends on its request and the drafter, so plain decoding is no measure.
        alone = Bench(tiny, {} if accept == "coupled" else drafts)
        want = [alone.run([replace(job, arrival=0)])[0] for job in jobs]
        options = drafts | {"scheduler.overlap": overlap, "scheduler.max_chunk": source.choice((5, 16, 64))}
        options |= {"cache.block_size": 8, "cache.num_blocks": source.choice((9, 12, 60))}
        options |= {"cache.prefix": source.choice(("on", "off"))}
        bench = Bench(tiny, options)
        if accept == "coupled":
            Forger(bench, Oracle(list(texts_of(want)), mixed, bench.parts.vocab_size))
        bench.poison()
        bench.after_step = bench.poison_free
        count = break_steps(bench, source)
        got, moves = disturbed(bench, jobs, source)
        # A request that moved has only the pieces of its last stay under its new id; results are whole.
        same_all_seen([replace(one, pieces=other.pieces) for one, other in zip(got, want, strict=True)], want)
        failed, moved, accepted = failed + count(), moved + moves, accepted + bench.accepted
    assert failed > 5 and moved > 3 and accepted > 20

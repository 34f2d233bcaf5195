"""Level L2 since contract 1.1: drafts, two steps in flight, cached prefixes and grammars change no text.

Like the rest of the engine suite these checks look at tokens.  Each says so itself where what it is there for did not
come about: no draft was taken, none refused, nothing was put back or found in the prefix cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tandem.conformance.engine_harness import (
    Check,
    Driver,
    EngineHarness,
    Job,
    OtherModel,
    digest,
    expect,
    greedy,
    jobs,
    tokens,
)
from tandem.engine.outputs import RequestOutput
from tandem.engine.request_state import RequestState
from tandem.sampling.params import SamplingParams
from tandem.structured.spec import StructuredSpec

PAIRS = "([xy]z){30}"  # every second token is forced: drafts follow the grammar, so such ones are taken
FORCED = "(abc){20}"
LETTERS = "[a-f]{40}"


def spoken() -> list[Job]:
    """The five plain jobs, and one greedy and one drawn within a grammar: drafts are taken and refused."""
    by_grammar = SamplingParams(temperature=1.0, seed=4, max_tokens=12, ignore_eos=True, structured=_regex(LETTERS))
    return [
        *jobs(),
        Job(tokens(11, 7), greedy(12, structured=_regex(PAIRS))),
        Job(tokens(12, 5), by_grammar),
    ]


def _regex(pattern: str) -> StructuredSpec:
    return StructuredSpec("regex", pattern)


def drafting(h: EngineHarness, count: int | None = None, **options: Any) -> Driver:
    """An engine with drafts, by default as many as the model makes."""
    return h.driver(speculation__draft_tokens=count, **options)


def _plain(h: EngineHarness) -> list[RequestOutput]:
    """`spoken` without drafts."""
    if "plain" not in h.known:
        h.known["plain"] = h.roomy.run(spoken())
    return h.known["plain"]


def _drafted(h: EngineHarness) -> list[RequestOutput]:
    """`spoken` with drafts, by rejection."""
    if "drafted" not in h.known:
        driver = drafting(h)
        h.known["drafted"] = driver.run(spoken())
        _judged(driver)
    return h.known["drafted"]


def _judged(driver: Driver) -> None:
    """Raise Mismatch unless drafts were taken and drafts were refused."""
    stats = driver.drafts
    told = f"{stats.accepted} of {stats.tested} drafts were taken; the check checks nothing"
    expect(0 < stats.accepted < stats.tested, told)


def _put_back(outputs: Sequence[RequestOutput]) -> None:
    expect(any(output.preemptions for output in outputs), "no request was preempted; the check checks nothing")


# -- drafts ----------------------------------------------------------------------------------------------------


def drafts(h: EngineHarness) -> None:
    """At temperature 0 the text with drafts is the text without, for every number of drafts that the model makes."""
    chosen = [place for place, job in enumerate(spoken()) if job.params.is_greedy]
    want = _plain(h)
    for count in range(1, drafting(h).parts.model.drafts + 1):
        driver = drafting(h, count)
        got = driver.run([spoken()[place] for place in chosen])
        h.same(f"{count} drafts", got, [want[place] for place in chosen])
        _judged(driver)


def coupled(h: EngineHarness) -> None:
    """With coupled drafts every text is the text without drafts, drawn at any temperature."""
    driver = drafting(h, speculation__accept="coupled")
    h.same("coupled drafts", driver.run(spoken()), _plain(h))
    _judged(driver)


def rejection(h: EngineHarness) -> None:
    """What rejection sampling gives a request depends on the request alone: not on company, chunk or preemption."""
    together, driver, place = _drafted(h), drafting(h), 6
    (alone,) = driver.run([spoken()[place]])
    (again,) = driver.run([spoken()[place]])
    expect(alone.token_ids == again.token_ids, "the same steps twice drew other tokens")
    h.agree("alone, with drafts", alone, together[place])
    small = drafting(h, cache__block_size=8, cache__window_block=4, scheduler__max_chunk=7)
    h.same("small chunks, with drafts", small.run(_arriving(spoken())), together)
    tight = drafting(h, cache__block_size=8, cache__num_blocks=8)
    got = tight.run(spoken())
    _put_back(got)
    h.same("preempted, with drafts", got, together)


def _arriving(asked: Iterable[Job]) -> list[Job]:
    return [replace(job, arrival=2 * place) for place, job in enumerate(asked)]


class _Damages(OtherModel):
    """A model that makes all logits of a row NaN, once."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver.parts.runner.model)
        self._backend = driver.parts.plan.backend
        self._add = driver.parts.plan.bind("adjust_logits", "conformance")
        self.row: int | None = None

    def logits(self, hidden: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """As the model, but for the row."""
        logits, send = super().logits(hidden, index), self._backend.from_host
        if self.row is not None and index.shape[0] > self.row:
            column = np.arange(logits.shape[1], dtype=np.int32)
            self._add(logits, send(0 * column + self.row), send(column), send(np.full(len(column), np.nan, np.float32)))
            self.row = None
        return logits


def bad_logits(h: EngineHarness) -> None:
    """NaN in the logits of a row that verifies a draft ends that request after the tokens before it, and no other."""
    forced = Job(tokens(21, 6), greedy(30, structured=_regex(FORCED)))
    asked = [Job(tokens(22, 9), greedy(20)), forced, Job(tokens(23, 4), greedy(30, structured=_regex(PAIRS)))]
    driver = drafting(h)
    # From here on the grammars are compiled: the requests run in the order in which they are added.
    want = driver.run(asked)
    broken = driver.parts.runner.model = _Damages(driver)
    requests = [driver.add(job) for job in asked]
    while (known := driver.drawn(requests[1])) < 5:
        driver.step()
    # Rows of a request: its newest token, then its drafts; all of them follow the grammar, which allows one token.
    broken.row = 1 + driver.parts.model.drafts + 1
    driver.finish()
    expect(broken.row is None, "no step verified drafts of the second request; the check checks nothing")
    victim, kept = driver.outputs[requests[1]], known + 1
    expect(victim.finish_reason == "error", f"NaN among its logits: ended with {victim.finish_reason}")
    got = len(victim.token_ids)
    expect(got == kept, f"NaN in the row of its second draft: ended with {got} tokens, want {kept}")
    expect(victim.token_ids == want[1].token_ids[:kept], "tokens before NaN logits are others")
    for place in (0, 2):
        h.agree(f"beside NaN logits, request {place}", driver.outputs[requests[place]], want[place])


def moved_drafts(h: EngineHarness) -> None:
    """A request that leaves between two steps takes its drafts along, and goes on as it would have."""
    asked, want = spoken(), _drafted(h)
    source = drafting(h)
    target = drafting(h, cache__block_size=32, cache__window_block=4)
    for place in (1, 5, 6):
        request = source.add(asked[place])
        while source.drawn(request) < 2:
            source.step()
        state = RequestState.from_bytes(source.engine.export_request(request).to_bytes())
        sent = state.device.get("draft.tokens")
        expect(sent is not None and bool((sent >= 0).any()), "the state of a request has no drafts")
        source.engine.cancel(request)
        moved = target.engine.import_request(state)
        rows = target.engine.stats.rows
        target.step()
        rows = target.engine.stats.rows - rows
        expect(rows <= 1 + target.parts.model.drafts, f"the first step computed {rows} rows: not what was sent")
        target.finish()
        h.agree(f"moved with drafts, request {place}", target.outputs[moved], want[place])
    source.check_clean()
    _judged(target)


# -- two steps in flight, grammars, cached prefixes ---------------------------------------------------------------


def overlap(h: EngineHarness) -> None:
    """With the next step queued while one runs: the same tokens, with and without drafts, preemptions included."""
    tight: dict[str, Any] = {"scheduler__overlap": "on", "cache__block_size": 8}
    plain, order = h.driver(**tight, cache__num_blocks=7), (3, 1, 4, 0)
    got = plain.run([jobs()[place] for place in order])
    plain.close()
    _put_back(got)
    h.same("two steps in flight", got, [h.alone[place] for place in order])
    driver = drafting(h, **tight, cache__num_blocks=8)
    got = driver.run(spoken())
    driver.close()
    _put_back(got)
    _judged(driver)
    h.same("two steps in flight, with drafts", got, _drafted(h))


def grammar(h: EngineHarness) -> None:
    """Grammars beside free requests, with drafts: each text is one of its grammar's, and no other than without."""
    ends = Job(tokens(31, 8), replace(greedy(20), ignore_eos=False, structured=_regex("a{2}[bc]d?")))
    one_of = StructuredSpec("choice", ("yes", "yesterday"))
    chosen = Job(tokens(32, 3), SamplingParams(temperature=1.2, seed=8, max_tokens=20, structured=one_of))
    asked = [*spoken(), ends, chosen]
    driver = drafting(h)
    got = driver.run(asked)
    _judged(driver)
    for place, pattern in ((5, "([xy]z)+"), (6, "[a-f]+"), (7, "a{2}[bc]d?"), (8, "yes|yesterday")):
        output = got[place]
        expect(output.error is None, f"request {place} failed: {output.error}")
        expect(re.fullmatch(pattern, output.text) is not None, f"{output.text!r} is not of the grammar {pattern}")
    expect(got[7].finish_reason == got[8].finish_reason == "stop", "a complete text did not end its request")
    h.same("grammars with drafts", [got[5], got[7]], [_plain(h)[5], *h.roomy.run([ends])])


def prefix(h: EngineHarness) -> None:
    """A prompt that begins like an earlier one takes what is stored, around the ends of blocks and windows.

    All memory without an owner holds NaN meanwhile.
    """
    stem = tokens(41, 48)
    mild = SamplingParams(temperature=0.7, seed=6, max_tokens=5, ignore_eos=True)
    shared = sorted({edge + off for edge in (8, 24, 40) for off in (-1, 0, 1, 4)})
    asked = [
        Job(stem[:count] + tokens(count, 3), (greedy(4), mild)[place % 2]) for place, count in enumerate(shared)
    ]
    want = drafting(h).run(asked)
    driver = drafting(h, cache__prefix="on", cache__block_size=8, cache__window_block=4)
    driver.poisons = True
    driver.run([Job(stem, greedy(1))])
    cache = driver.parts.prefix
    if cache is None:
        expect(False, "there is no prefix cache")
        return
    before = cache.stats()
    got = driver.run(asked)
    found = cache.stats().hit_tokens - before.hit_tokens
    least = sum(count // 8 * 8 for count in shared)
    expect(found >= least, f"{found} tokens were taken from the cache, want {least}")
    h.same("from stored state", got, want)
    h.same("from stored state again", driver.run(asked), want)


# -- all of it --------------------------------------------------------------------------------------------------

# How runs differ: slots, rows of a chunk, drafts, blocks of 8 tokens (the last has too few), overlap.
RUNS = ((4, 32, 0, 64, "off"), (4, 9, None, 64, "on"), (4, 17, 2, 8, "off"))


def invariance(h: EngineHarness) -> None:
    """Greedy requests under jitter: arrivals, chunks, hits, preemptions, drafts.  Tokens and logprobs have one hash."""
    stems = [tokens(50 + n, 20 + 9 * n) for n in range(3)]
    asked = [Job(stems[n % 3] + tokens(60 + n, 1 + n), greedy(3 + n % 4)) for n in range(7)]
    asked.append(Job(stems[0] + tokens(70, 2), greedy(8, structured=_regex(PAIRS))))
    want: list[RequestOutput] = []
    hits = put_back = taken = 0
    for number, (slots, chunk, count, blocks, overlap) in enumerate(RUNS):
        driver = drafting(
            h,
            count,
            cache__prefix="on",
            cache__block_size=8,
            cache__num_blocks=blocks,
            scheduler__max_slots=slots,
            scheduler__max_chunk=chunk,
            scheduler__overlap=overlap,
        )
        rng = np.random.default_rng(number)
        for _ in range(2):
            order = rng.permutation(len(asked)).tolist()
            late = [replace(asked[place], arrival=int(rng.integers(8))) for place in order]
            outputs = dict(zip(order, driver.run(late), strict=True))
            got = [outputs[place] for place in range(len(asked))]
            want = want or got
            if not h.exact or digest(got) != digest(want):
                h.same(f"jittered run {number}", got, want)
            put_back += sum(output.preemptions for output in got)
        driver.close()
        taken += driver.drafts.accepted
        hits += 0 if driver.parts.prefix is None else driver.parts.prefix.stats().hits
    for name, times in (("hit of the prefix cache", hits), ("preemption", put_back), ("draft taken", taken)):
        expect(times > 0, f"no {name} came about; the check checks nothing")


# All but `coupled`, which a quick run has too.
CHECKS: list[tuple[str, Check]] = [
    ("drafts", drafts),
    ("rejection", rejection),
    ("bad-logits", bad_logits),
    ("moved-drafts", moved_drafts),
    ("overlap", overlap),
    ("grammar", grammar),
    ("prefix", prefix),
    ("invariance", invariance),
]

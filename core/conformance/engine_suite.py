"""Level L2: a backend serves.  The engine on a tiny model, judged by its tokens and by what it gives back.

A check raises `tandem.conformance.compare.Mismatch` with what differed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from tandem.conformance import engine_drafts
from tandem.conformance.engine_harness import (
    Check,
    Driver,
    EngineHarness,
    Job,
    OtherModel,
    expect,
    greedy,
    jobs,
    tokens,
)
from tandem.contract.types import Rows
from tandem.engine.outputs import RequestOutput
from tandem.engine.request_state import RequestState
from tandem.errors import CapacityError, RequestError, TandemError
from tandem.model.step import StepInput
from tandem.sampling.params import SamplingParams


def checks(quick: bool = False) -> list[tuple[str, Check]]:
    """(name, check) of the whole suite, or of a quick part of it, in the order to run them.

    Those of `tandem.conformance.engine_drafts` came with contract 1.1, all others with 1.0.
    """
    fast: list[tuple[str, Check]] = [
        ("batch", batch),
        ("preemption", preemption),
        ("padding", padding),
        ("transfer", transfer),
        ("coupled", engine_drafts.coupled),
    ]
    rest: list[tuple[str, Check]] = [
        ("arrivals", arrivals),
        ("chunks", chunks),
        ("pressure", pressure),
        ("cancel", cancel),
        ("bad-requests", bad_requests),
        ("seeds", seeds),
        ("stops", stops),
        ("logprobs", logprobs),
        ("failed-step", failed_step),
        ("cache-bytes", cache_bytes),
        *engine_drafts.CHECKS,
        ("reopen", reopen),
    ]
    return fast if quick else fast + rest


# -- the same tokens however requests are put together -------------------------------------------------------


def batch(h: EngineHarness) -> None:
    """All requests together, more than there are slots, against each alone."""
    h.same("together", h.roomy.run(jobs()), h.alone)


def arrivals(h: EngineHarness) -> None:
    """The same requests in the opposite order, one every other step."""
    late = [replace(job, arrival=2 * place) for place, job in enumerate(reversed(jobs()))]
    h.same("arriving one by one", h.roomy.run(late)[::-1], h.alone)


def chunks(h: EngineHarness) -> None:
    """Prompts cut into small chunks, with other block sizes."""
    small = h.driver(
        cache__block_size=8, cache__window_block=4, scheduler__max_chunk=7, scheduler__max_tokens_per_step=11
    )
    h.same("small chunks", small.run(jobs()), h.alone)


def preemption(h: EngineHarness) -> None:
    """A pool too small for what runs: requests lose their blocks, within the prompt and later, and go on."""
    for order, blocks in (((0, 1, 2, 3, 4), 8), ((3, 1, 4, 0), 7)):
        tight = h.driver(cache__block_size=8, cache__num_blocks=blocks)
        got = tight.run([jobs()[place] for place in order])
        expect(any(output.preemptions for output in got), "no request was preempted; the check checks nothing")
        h.same(f"preempted, {blocks} blocks", got, [h.alone[place] for place in order])


def pressure(h: EngineHarness) -> None:
    """Many requests through few slots and blocks, twice, so that all memory is used again."""
    crowd = [Job(tokens(100 + n, 1 + 5 * n % 29), greedy(2 + n % 3)) for n in range(16)]
    tight = h.driver(cache__num_blocks=6)
    first, again = tight.run(crowd), tight.run(crowd)
    expect(tight.least_free == 0, f"{tight.least_free} blocks were always free; the check checks nothing")
    for place, output in enumerate((*first, *again)):
        expect(output.error is None, f"request {place} failed: {output.error}")
        expect(len(output.token_ids) == crowd[place % 16].params.max_tokens, f"request {place} ended early")
    h.same("the second time", again, first)


# -- requests that end early ---------------------------------------------------------------------------------


def cancel(h: EngineHarness) -> None:
    """Cancelled while queued, within the prompt, while decoding and while put back; the others do not notice."""
    known, tight = jobs(), h.driver(cache__num_blocks=5, scheduler__max_chunk=16)
    stay = tight.add(known[0])
    in_prompt, decoding = tight.add(known[2]), tight.add(known[1])
    tight.step()
    _cancelled(tight, in_prompt, 0)
    while not tight.drawn(decoding):
        tight.step()
    expect(_cancelled(tight, decoding, 1) == h.alone[1].token_ids[:1] or not h.exact, "cancelled with other tokens")
    others = [tight.add(job) for job in (known[2], known[4], known[3], known[1])]
    _cancelled(tight, others.pop(), 0)  # queued: there are four slots
    put_back = _until_put_back(tight)
    _cancelled(tight, put_back)
    tight.finish()
    h.agree("beside cancelled requests", tight.outputs[stay], h.alone[0])
    for request, place in zip(others, (2, 4, 3), strict=True):
        if request != put_back:
            h.agree("beside cancelled requests", tight.outputs[request], h.alone[place])
    expect(tight.engine.cancel(stay) is None, "a request that had ended was cancelled")


def _cancelled(driver: Driver, request: int, count: int | None = None) -> tuple[int, ...]:
    output = driver.engine.cancel(request)
    if output is None or output.finish_reason != "cancelled":
        expect(False, f"cancelling gave {output}")
        return ()
    expect(count in (None, len(output.token_ids)), f"cancelled with {len(output.token_ids)} tokens, want {count}")
    return output.token_ids


def _until_put_back(driver: Driver) -> int:
    """Step until a request has lost its blocks; returns its id."""
    table = driver.parts.table
    while not driver.engine.idle:
        driver.step()
        for slot in driver.parts.scheduler.waiting:
            if table.preemptions[slot]:
                prompt = tuple(table.prompt(slot).tolist())
                return max(request for request, job in driver.added.items() if job.prompt == prompt)
    expect(False, "no request was preempted; the check checks nothing")
    return -1


def bad_requests(h: EngineHarness) -> None:
    """What cannot be served ends in its own error, before or while others run."""
    tight = h.driver(cache__num_blocks=5)
    good = tight.add(jobs()[0])
    tight.step()
    params = greedy(4)
    _refused(tight, Job((), params), RequestError)
    _refused(tight, Job((3, h.vocabulary), params), RequestError)
    _refused(tight, Job(tokens(1, 125), params), RequestError)  # longer than the model
    _refused(tight, Job(tokens(1, 100), params), CapacityError)  # longer than all blocks
    rows = np.zeros((1, h.hidden), dtype=np.float32)
    rows[0, 17] = np.nan
    damaged = tight.engine.add_request(tokens(30, 9), params, embed_rows=rows, embed_positions=[5])
    banned = tight.add(Job(tokens(31, 9), greedy(4, logit_bias=dict.fromkeys(range(h.vocabulary), -math.inf))))
    tight.finish()
    for request, word in ((damaged, "a NaN among its inputs"), (banned, "every token banned")):
        output = tight.outputs[request]
        expect(output.finish_reason == "error" and not output.token_ids, f"{word}: ended with {output.finish_reason}")
    h.agree("beside requests that fail", tight.outputs[good], h.alone[0])
    h.same("on memory that held NaN", tight.run([jobs()[2]]), [h.alone[2]])


def _refused(driver: Driver, job: Job, kind: type[TandemError]) -> None:
    try:
        driver.add(job)
    except kind:
        return
    expect(False, f"a prompt of {len(job.prompt)} tokens was taken, want {kind.__name__}")


# -- what is drawn, and where it ends ------------------------------------------------------------------------


def seeds(h: EngineHarness) -> None:
    """A drawn token is a function of seed and position: not of neighbours, not of what was drawn before."""
    hot = SamplingParams(temperature=1.5, seed=77, max_tokens=8, ignore_eos=True)
    prompt = tokens(9, 10)
    (whole,) = h.roomy.run([Job(prompt, hot)])
    (again,) = h.roomy.run([Job(prompt, hot)])
    h.agree("the same seed again", again, whole)
    expect(again.token_ids == whole.token_ids, "the same step twice drew other tokens")
    (other,) = h.roomy.run([Job(prompt, replace(hot, seed=77 + 2**63))])
    expect(other.token_ids != whole.token_ids, "seeds that differ in their highest bit drew the same tokens")
    if h.exact:
        drawn = whole.token_ids
        rest = Job(prompt + drawn[:3], replace(hot, max_tokens=5))
        got = h.roomy.run([Job(tokens(8, 20), hot), rest])[1]
        expect(got.token_ids == drawn[3:], f"went on with {got.token_ids}, want {drawn[3:]}")


def stops(h: EngineHarness) -> None:
    """Length, end token, stop tokens and strings, and min_tokens before them."""
    prompt, driver = tokens(7, 6), h.roomy
    bias = {driver.parts.tokenizer.encode(letter)[-1]: 1e4 for letter in "xyz"}
    base = SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True, logit_bias=bias)
    (free,) = driver.run([Job(prompt, base)])
    _ends(free, 12, "length", None)
    expect(len(free.text) == 12 and set(free.text) <= set("xyz"), f"a bias to x, y, z gave {free.text!r}")
    stop, token = free.text[4:6], free.token_ids[5]
    cut, first = free.text.index(stop), free.token_ids.index(token)
    first_late = next((i for i in range(7, 12) if free.token_ids[i] == token), None)
    late = replace(base, stop_token_ids=(token,), min_tokens=8)
    by_string, by_token, by_end, after = driver.run(
        [
            Job(prompt, replace(base, stop=("nowhere", stop))),
            Job(prompt, replace(base, stop_token_ids=(token,))),
            Job(prompt, replace(base, ignore_eos=False, logit_bias={h.eos: 1e4})),
            Job(prompt, late),
        ]
    )
    _ends(by_end, 1, "stop", h.eos)
    expect(len(after.token_ids) >= 8 or first_late is None, "ended before min_tokens")
    if h.exact:
        _ends(by_string, cut + len(stop), "stop", stop)
        expect(by_string.text == free.text[:cut], f"text before a stop string is {by_string.text!r}")
        _ends(by_token, first + 1, "stop", token)


def _ends(output: RequestOutput, count: int, reason: str, by: int | str | None) -> None:
    got = (len(output.token_ids), output.finish_reason, output.stop_reason)
    expect(got == (count, reason, by), f"(tokens, finish reason, stop reason) is {got}, want {(count, reason, by)}")


def logprobs(h: EngineHarness) -> None:
    """Logprobs of every token sum to one; the drawn token's is among them; a greedy draw is certain."""
    whole = {"logprobs": h.vocabulary, "processed_logprobs": True}
    drawn = SamplingParams(temperature=0.7, top_k=9, seed=1, max_tokens=4, ignore_eos=True, logprobs=h.vocabulary)
    certain, warm = h.roomy.run([Job(tokens(6, 8), greedy(4, **whole)), Job(tokens(6, 8), drawn)])
    for entry in (*(certain.logprobs or ()), *(warm.logprobs or ())):
        values = list(entry.top.values())
        expect(len(values) == h.vocabulary, f"{len(values)} logprobs of {h.vocabulary} tokens")
        total = math.fsum(map(math.exp, values))
        expect(abs(total - 1) < 1e-4, f"the probabilities of all tokens sum to {total}")
        expect(values == sorted(values, reverse=True), "logprobs are not in descending order")
        expect(abs(entry.top[entry.token_id] - entry.raw) < 1e-4, f"a drawn token has two logprobs: {entry.raw}")
    for entry in certain.logprobs or ():
        expect(entry.processed == 0.0, f"a greedy draw has the logprob {entry.processed}")
        expect(entry.token_id == next(iter(entry.top)), "a greedy draw is not the likeliest token")
    expect(len(certain.logprobs or ()) == len(warm.logprobs or ()) == 4, "not one entry a token")


# -- memory ----------------------------------------------------------------------------------------------------


def padding(h: EngineHarness) -> None:
    """A step of nothing but padding rows writes no cache and no state; requests in the middle go on."""
    driver, chosen = h.roomy, (0, 2)
    requests = [driver.add(jobs()[place]) for place in chosen]
    for _ in range(4):
        driver.step()
    before = driver.memory()
    with torch.inference_mode():
        hidden = driver.parts.model.forward(_padding_step(driver, 3))
        driver.parts.plan.backend.to_host(hidden).result()
    for name, value in driver.memory().items():
        wrong = int((value.view(np.uint8) != before[name].view(np.uint8)).sum())
        expect(wrong == 0, f"padding rows changed {wrong} bytes of {name}")
    driver.finish()
    h.same("after padding", _outputs(driver, requests), [h.alone[place] for place in chosen])


def _padding_step(driver: Driver, count: int) -> StepInput:
    parts, up = driver.parts, driver.parts.plan.backend.from_host
    own, zero = np.arange(count, dtype=np.int32), np.zeros(count, dtype=np.int32)
    rows = Rows(*(up(column) for column in (zero, zero, zero - 1, own, own + 1, zero)))
    tables = parts.tables.main
    entries = tables.columns * tables.block_size
    width = {ratio: entries // ratio for ratio in parts.config.text.compress_ratios if ratio}
    builder = parts.builder
    return StepInput(rows, builder.block_table, builder.window_table, builder.window_first, width, "decode")


def transfer(h: EngineHarness) -> None:
    """Requests leave as bytes, within the prompt and while decoding, and go on in an engine of other block sizes."""
    source, chosen = h.driver(scheduler__max_chunk=16), (0, 2, 3)
    target = h.driver(cache__block_size=32, cache__window_block=4)
    for place in chosen:
        request = source.add(jobs()[place])
        source.step()
        if place == 0:
            source.step()
            source.step()
        state = RequestState.from_bytes(source.engine.export_request(request).to_bytes())
        expect(0 < state.num_computed < len(state.tokens), f"{state.num_computed} of {len(state.tokens)} computed")
        source.engine.cancel(request)
        moved = target.engine.import_request(state)
        target.step()
        target.finish()
        h.agree(f"moved, request {place}", target.outputs[moved], h.alone[place])
    source.check_clean()


def cache_bytes(h: EngineHarness) -> None:
    """Canonical cache bytes taken out and put back, with other bytes in between, change nothing."""
    driver, backend = h.roomy, h.backend
    request = driver.add(jobs()[0])
    for _ in range(5):
        driver.step()
    for name, cache in driver.paged().items():
        blocks = np.arange(cache.num_blocks, dtype=np.int32)
        kept = backend.kv_export(cache, blocks)
        backend.kv_import(cache, blocks, np.bitwise_not(kept))
        expect(bool((backend.kv_export(cache, blocks) == np.bitwise_not(kept)).all()), f"{name} came back otherwise")
        order = blocks[::-1].copy()
        backend.kv_import(cache, order, kept[::-1])
        expect(bool((backend.kv_export(cache, blocks) == kept).all()), f"{name} came back otherwise")
    driver.finish()
    h.agree("after its caches were taken out and put back", driver.outputs[request], h.alone[0])


class _FailsOnce(OtherModel):
    """A model that fails once, after it has written caches and state."""

    failed = False

    def forward(self, step: StepInput) -> torch.Tensor:
        """As the model, but for the first time."""
        hidden = super().forward(step)
        if not self.failed:
            self.failed = True
            raise RuntimeError("a step fails on purpose")
        return hidden


def failed_step(h: EngineHarness) -> None:
    """A step that fails half-way, among decode rows and in the middle of a prompt, is retried with the same result."""
    driver, chosen = h.driver(scheduler__max_chunk=9), (0, 1, 2)
    requests = [driver.add(jobs()[place]) for place in chosen]
    for _ in range(2):
        driver.step()
    runner = driver.parts.runner
    whole, broken = runner.model, _FailsOnce(runner.model)
    runner.model = broken
    try:
        driver.step()
        expect(False, "a failing step gave a result")
    except RuntimeError:
        expect(broken.failed, "a step failed for another reason")
    finally:
        runner.model = whole
    driver.finish()
    h.same("after a failed step", _outputs(driver, requests), [h.alone[place] for place in chosen])


def reopen(h: EngineHarness) -> None:
    """An engine closed in the middle of a request, and one on a backend opened again; both leave others alone."""
    if h.reopen is None:
        return
    chosen = jobs()[:2]
    for left_running in (True, False):
        driver = h.driver(h.reopen())
        if left_running:
            driver.add(chosen[0])
            driver.step()
        else:
            h.same("opened again", driver.run(chosen), h.alone[:2])
        driver.parts.close()
    h.same("beside a backend that was closed", h.roomy.run(chosen), h.alone[:2])


def _outputs(driver: Driver, requests: Sequence[int]) -> list[RequestOutput]:
    return [driver.outputs[request] for request in requests]

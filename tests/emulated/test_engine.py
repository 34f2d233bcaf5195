"""The engine on the emulated devices: a reduced form of the suite of level L2, sized for an interpreter.

Each test compares requests in company with the same requests alone, to the last bit of their logprobs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.emulated import BACKENDS, opened

from tandem.conformance.engine_harness import Driver, EngineHarness, Job, greedy, tokens
from tandem.engine.outputs import RequestOutput
from tandem.sampling.params import SamplingParams
from tandem.structured.spec import StructuredSpec

pytestmark = pytest.mark.slow

LETTERS = StructuredSpec("regex", "[a-f]{12}")
JOBS = [
    Job(tokens(1, 19), greedy(4)),
    Job(tokens(2, 3), SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=4, ignore_eos=True, logprobs=1), 1),
    Job(tokens(4, 9), SamplingParams(temperature=0.0, max_tokens=5, structured=LETTERS, logprobs=1), 2),
]


@pytest.fixture(scope="module", params=BACKENDS)
def harness(request: pytest.FixtureRequest) -> Iterator[EngineHarness]:
    with EngineHarness(opened(request.param)) as found:
        yield found


@pytest.fixture(scope="module")
def alone(harness: EngineHarness) -> list[RequestOutput]:
    """Each job by itself, the prompt in one chunk."""
    return [harness.roomy.run([Job(job.prompt, job.params)])[0] for job in JOBS]


def run(driver: Driver, jobs: list[Job] = JOBS) -> list[RequestOutput]:
    driver.poisons = True
    found = driver.run(jobs)
    driver.close()
    return found


def test_a_grammar_is_kept(alone: list[RequestOutput]) -> None:
    assert alone[2].text and set(alone[2].text) <= set("abcdef")


def test_mixed_batches_and_chunked_prefill(harness: EngineHarness, alone: list[RequestOutput]) -> None:
    driver = harness.driver(scheduler__max_chunk=7, scheduler__max_tokens_per_step=16)
    harness.same("small chunks, together", run(driver), alone)


def test_preemption(harness: EngineHarness) -> None:
    """Two requests that grow, and three blocks: one is put back and computed again."""
    growing = [Job(tokens(6, 7), greedy(12)), Job(tokens(7, 7), greedy(12))]
    apart = [harness.roomy.run([job])[0] for job in growing]
    driver = harness.driver(cache__num_blocks=3, cache__block_size=8)
    found = run(driver, growing)
    assert any(output.preemptions for output in found)
    harness.same("preempted", found, apart)


def test_speculation_changes_no_greedy_text(harness: EngineHarness, alone: list[RequestOutput]) -> None:
    driver = harness.driver(speculation__draft_tokens=2, speculation__accept="coupled")
    found = run(driver)
    assert driver.drafts.tested > 0
    harness.same("with drafts", found, alone)


def test_a_hit_is_a_miss(harness: EngineHarness, alone: list[RequestOutput]) -> None:
    driver = harness.driver(cache__prefix="on", cache__block_size=8)
    job = Job(JOBS[0].prompt, JOBS[0].params)
    first, second = driver.run([job])[0], driver.run([job])[0]
    assert driver.engine.metrics()["prefix"]["hit_tokens"] > 0
    driver.close()
    harness.same("a miss and a hit", [first, second], [alone[0], alone[0]])

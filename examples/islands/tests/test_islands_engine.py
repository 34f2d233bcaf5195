"""Drafts and two steps in flight on islands: slow copies and failing ops change no token."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tandem_islands.backend import IslandsBackend
from tandem_islands.faults import InjectedFault

from tandem.conformance.engine_drafts import spoken
from tandem.conformance.engine_harness import Driver, EngineHarness
from tandem.engine.outputs import RequestOutput

CHOSEN = (0, 1, 5)  # greedy, drawn, by a grammar


@pytest.fixture(scope="module")
def harness() -> Iterator[EngineHarness]:
    with EngineHarness(IslandsBackend.open(0, {})) as found:
        yield found


@pytest.fixture(scope="module")
def want(harness: EngineHarness) -> list[RequestOutput]:
    """One step after the other, on an island without faults."""
    return made(harness, "", "off")[1]


def made(harness: EngineHarness, fault: str, overlap: str) -> tuple[int, list[RequestOutput], Driver]:
    """Failed steps, outputs and engine of a run with as many drafts as the model makes."""
    backend = IslandsBackend.open(0, {"fault": fault})
    driver = harness.driver(backend, speculation__draft_tokens=None, scheduler__overlap=overlap)
    requests, failed = [driver.add(spoken()[place]) for place in CHOSEN], 0
    while not driver.engine.idle:
        try:
            driver.step()
        except InjectedFault:
            failed += 1
    driver.check_clean()
    driver.close()
    return failed, [driver.outputs[request] for request in requests], driver


@pytest.mark.parametrize(
    ("fault", "overlap", "fails"),
    [
        pytest.param("op:spec_verify@2,op:aux.accept@5", "off", 2, id="one step after the other"),
        pytest.param(
            "slow@3,slow@9,slow@20,op:spec_verify@2,op:aux.draft_commit@9,op:aux.verify_rows@5", "on", 3,
            id="two steps in flight",
        ),
    ],
)
def test_drafts_and_tokens(
    harness: EngineHarness, want: list[RequestOutput], fault: str, overlap: str, fails: int
) -> None:
    failed, got, driver = made(harness, fault, overlap)
    assert failed == fails and 0 < driver.drafts.accepted < driver.drafts.tested
    for one, other in zip(got, want, strict=True):
        assert (one.token_ids, one.text, one.logprobs) == (other.token_ids, other.text, other.logprobs)

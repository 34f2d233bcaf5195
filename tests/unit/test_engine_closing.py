"""What is said while a step fails, and after an engine was closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engines import ROOMY

from tandem.config import load_config
from tandem.engine import waiting
from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput
from tandem.errors import RequestError
from tandem.sampling.params import SamplingParams
from tandem.structured.spec import StructuredSpec

LONG = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


@pytest.fixture(params=["off", "on"])
def llm(tiny: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    options = {**ROOMY, "model.path": str(tiny), "scheduler.max_slots": 2, "scheduler.overlap": request.param}
    found = LLM(config=load_config(env={}, args=options))
    yield found
    found.close()


def ends(llm: LLM) -> dict[int, RequestOutput]:
    """Run everything to its end, past steps that fail; each request ends once."""
    found: dict[int, RequestOutput] = {}
    while not llm.engine.idle:
        try:
            pieces = llm.engine.step()
        except OSError:
            continue
        for piece in pieces:
            if piece.output is not None:
                assert piece.request_id not in found
                found[piece.request_id] = piece.output
    return found


def test_ends_are_told_though_the_step_fails(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a request whose time is over, and of one that waits and has a form that cannot be made."""
    engine, runner = llm.engine, llm.engine._parts.runner
    running = engine.add_request([5, 6, 7], LONG)
    late = engine.add_request([8, 9], SamplingParams(max_tokens=20, ignore_eos=True, deadline_s=1000.0))
    for _ in range(3):
        engine.step()
    bad = engine.add_request([3, 4], SamplingParams(max_tokens=5, structured=StructuredSpec("regex", "(")))
    pending = engine._pending.get(bad)
    assert pending is not None and pending.ticket is not None
    with pytest.raises(RequestError):
        pending.ticket.result(30.0)
    now = waiting.monotonic()
    monkeypatch.setattr(waiting, "monotonic", lambda: now + 2000.0)
    real, failures = runner._forward, [0]

    def failing(*given: Any) -> Any:
        if failures[0] < 1:
            failures[0] += 1
            raise OSError("the device gave up")
        return real(*given)

    monkeypatch.setattr(runner, "_forward", failing)
    found = ends(llm)
    assert failures == [1] and sorted(found) == [running, late, bad]
    assert found[late].finish_reason == "deadline" and isinstance(found[bad].error, RequestError)
    assert len(found[running].token_ids) == 20


def test_a_closed_engine_says_so(llm: LLM) -> None:
    """Whatever is asked of it; readers and owners of requests may still leave."""
    engine = llm.engine
    request = engine.add_request([5, 6, 7], LONG)
    engine.step()
    state = engine.export_request(engine.add_request([4], LONG))
    reader = llm.stream([7, 8], LONG)
    next(reader)
    llm.close()
    calls: list[Callable[[], Any]] = [
        lambda: engine.add_request([5], LONG),
        lambda: engine.add_copies([5], LONG),
        engine.step,
        lambda: engine.export_request(request),
        lambda: engine.import_request(state),
        lambda: next(llm.stream([5], LONG)),
    ]
    for call in calls:
        with pytest.raises(RequestError, match="the engine is closed"):
            call()
    refused = llm.generate([[5]], LONG)[0]
    assert isinstance(refused.error, RequestError) and "closed" in str(refused.error)
    reader.close()  # type: ignore[attr-defined]
    assert engine.cancel(request) is None
    llm.close()

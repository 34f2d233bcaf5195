"""What other parameters of a request mean together with a grammar, and requests whose grammar is not made yet."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.structured_engine import DRAFTS, OVERLAP, PLAIN, Work, open_engine, run

from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput
from tandem.sampling.params import SamplingParams
from tandem.structured import Compiler, StructuredSpec
from tandem.structured.compiler import Ticket
from tandem.tokenizer.tokenizer import Tokenizer

PROMPT = list(range(70, 80))
WELL = "the well behind the hill"
EOS = 1


def asking(spec: StructuredSpec | None = None, **more: Any) -> Work:
    form = spec or StructuredSpec("choice", [WELL])
    return PROMPT, SamplingParams(**{"max_tokens": 30, "seed": 4, "structured": form, **more})


def cases(well: tuple[int, ...]) -> dict[str, Work]:
    """Requests by name; ``well`` are the tokens that the form makes of `WELL`."""
    count, first = len(well), well[0]
    letters = StructuredSpec("regex", "[a-z ]+")
    two = StructuredSpec("choice", ["stone", "well"])
    return {
        "nothing": asking(),
        "ignore_eos": asking(ignore_eos=True),
        "ignore_eos, open end": asking(StructuredSpec("regex", "a{2,}"), ignore_eos=True, logit_bias={EOS: 20.0}),
        "ignore_eos, max_tokens": asking(ignore_eos=True, max_tokens=count),
        "min_tokens met": asking(min_tokens=count),
        "min_tokens one too long": asking(min_tokens=count + 1),
        "min_tokens too long": asking(min_tokens=count + 9),
        "min_tokens, open end": asking(StructuredSpec("regex", "a+"), min_tokens=7, logit_bias={EOS: 20.0}),
        "forced along the form": asking(letters, forced_token_ids=well, max_tokens=count),
        "forced against the form": asking(forced_token_ids=(first, EOS)),
        "bad word": asking(two, bad_words=("s",)),
        "bad words, all": asking(two, bad_words=("s", "w")),
        "banned": asking(logit_bias={first: -math.inf}),
        "stop string": asking(stop=(" hill",)),
        "stop token": asking(stop_token_ids=(well[2],)),
        "penalties": asking(presence_penalty=2.0, repetition_penalty=3.0, temperature=0.0),
    }


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.load(tiny)


@pytest.fixture(scope="module")
def well(tokenizer: Tokenizer) -> tuple[int, ...]:
    return tuple(tokenizer.encode(WELL, add_bos=False))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> Iterator[Compiler]:
    made = Compiler(tokenizer, 512)
    yield made
    made.close()


@pytest.fixture(scope="module")
def drafting(tiny: Path, compiler: Compiler) -> LLM:
    return open_engine(tiny, DRAFTS, OVERLAP, compiler=compiler)


@pytest.fixture(scope="module", params=[PLAIN, DRAFTS], ids=["plain", "drafts"])
def outputs(
    request: pytest.FixtureRequest, tiny: Path, compiler: Compiler, well: tuple[int, ...]
) -> dict[str, RequestOutput]:
    work = cases(well)
    llm = open_engine(tiny, request.param, OVERLAP, {"scheduler.max_slots": len(work)}, compiler=compiler)
    return dict(zip(work, run(llm, list(work.values())), strict=True))


def test_the_end_of_a_form_is_the_end_whatever_the_end_token_means(
    outputs: dict[str, RequestOutput], well: tuple[int, ...]
) -> None:
    assert outputs["nothing"].token_ids == (*well, EOS)
    assert outputs["min_tokens met"].token_ids == (*well, EOS)
    for name in ("ignore_eos", "min_tokens one too long", "min_tokens too long"):
        assert (outputs[name].token_ids, outputs[name].finish_reason) == (well, "stop"), name
    assert outputs["ignore_eos, max_tokens"].token_ids == well
    assert outputs["ignore_eos, max_tokens"].finish_reason == "length"
    # The end token is likelier than all others, and completes the form where it is allowed.
    ended = outputs["ignore_eos, open end"]
    assert ended.text == "aa" and (ended.token_ids[-1], ended.finish_reason) == (EOS, "stop")
    ended = outputs["min_tokens, open end"]
    assert len(ended.token_ids) == 8 and ended.token_ids[-1] == EOS


def test_what_is_forced_or_banned_goes_before_the_form(
    outputs: dict[str, RequestOutput], well: tuple[int, ...]
) -> None:
    assert outputs["forced along the form"].text == WELL
    refused = outputs["forced against the form"]
    assert refused.token_ids == well[:1] and refused.error is not None
    assert f"token {EOS} is not allowed behind 1 tokens" in refused.error.why
    assert outputs["bad word"].text == "well" and outputs["bad word"].finish_reason == "stop"
    for name in ("bad words, all", "banned"):
        error = outputs[name].error
        assert error is not None and "every token is banned" in error.why, name
        assert outputs[name].token_ids == ()


def test_stops_cut_the_form(outputs: dict[str, RequestOutput], well: tuple[int, ...]) -> None:
    assert outputs["stop string"].text == WELL.removesuffix(" hill")
    assert outputs["stop string"].stop_reason == " hill"
    assert outputs["stop token"].token_ids == well[:3]
    assert outputs["penalties"].text == WELL


def pending(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Future[Any]:
    """Have every grammar wait for a future."""
    future: Future[Any] = Future()
    made = SimpleNamespace(submit=lambda spec: Ticket(future, spec, 512, EOS))
    monkeypatch.setattr(llm._assembly, "compiler", made)
    return future


def test_a_grammar_that_is_not_made_yet_holds_nobody_up(
    drafting: LLM, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = drafting.engine
    template = compiler.submit(StructuredSpec("choice", [WELL]))._future.result()
    future = pending(drafting, monkeypatch)
    waiting, left = engine.add_request(*asking()), engine.add_request(*asking())
    begin, steps = time.monotonic(), 0
    while time.monotonic() - begin < 0.1:
        assert engine.step() == [] and not engine.idle
        steps += 1
    assert 1 <= steps <= 11  # each waits 10 ms
    free = engine.add_request(PROMPT, SamplingParams(max_tokens=5, ignore_eos=True, seed=1))
    with monkeypatch.context() as patch:
        patch.setattr(engine._pending, "wait", lambda seconds: pytest.fail("a step waited for a grammar"))
        found = {}
        while free not in found:
            found |= {piece.request_id: piece.output for piece in engine.step() if piece.output is not None}
    assert list(found) == [free] and len(found[free].token_ids) == 5
    assert engine.cancel(left) is not None
    future.set_result(template)
    while not engine.idle:
        found |= {piece.request_id: piece.output for piece in engine.step() if piece.output is not None}
    assert found[waiting].text == WELL and left not in found


def test_a_step_goes_on_as_soon_as_a_grammar_is_made(
    drafting: LLM, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = compiler.submit(StructuredSpec("choice", [WELL]))._future.result()
    future = pending(drafting, monkeypatch)
    monkeypatch.setattr("tandem.engine.engine.LONGEST_WAIT_S", 60.0)
    request = drafting.engine.add_request(*asking())
    drafting._assembly.text_lane.submit(lambda: (time.sleep(0.05), future.set_result(template)))
    begin = time.monotonic()
    drafting.engine.step()
    assert time.monotonic() - begin < 30
    assert drafting.engine.cancel(request) is not None

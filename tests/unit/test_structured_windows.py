"""A grammar that begins inside a window of drafts, and one whose windows are cut at any place."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.shipped import tokenizer
from support.structured_engine import DRAFTS, PLAIN, Watch, alone, open_engine, run, script_drafts, watched

from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput
from tandem.sampling.params import SamplingParams
from tandem.structured import Compiler, StructuredSpec

PROMPT = list(range(50, 62))
TRIGGER, BOUND = (61, 62), 63
FORM = StructuredSpec("regex", "[a-f]{4,6}(-[0-9]){4,}")
DRAFT_COUNT = 3  # of the tiny checkpoint; a window has one row more


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    made = Compiler(tokenizer(), 512)
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain(tiny: Path, compiler: Compiler) -> LLM:
    return open_engine(tiny, PLAIN, compiler=compiler)


@pytest.fixture(scope="module")
def drafting(tiny: Path, compiler: Compiler) -> LLM:
    return open_engine(tiny, DRAFTS, compiler=compiler)


def triggered(place: int, bound: bool) -> SamplingParams:
    """The trigger, or the token that forces it, is forced after ``place`` free tokens."""
    spec = StructuredSpec(FORM.kind, FORM.schema, TRIGGER, BOUND if bound else None)
    forced = (*[-1] * place, *((BOUND,) if bound else TRIGGER))
    return SamplingParams(temperature=0.0, max_tokens=place + 9, structured=spec, forced_token_ids=forced)


def check_masks(watch: Watch, compiler: Compiler, params: SamplingParams, output: RequestOutput) -> None:
    """Every row that could be drawn from had the mask of a matcher that saw the tokens before it and nothing else."""
    tokens = list(output.token_ids)
    begin = 0
    if params.structured is not None and params.structured.trigger_token_ids:
        begin = next(at for at in range(len(tokens)) if tuple(tokens[at : at + 2]) == TRIGGER) + 2
    fresh = compiler.submit(FORM).result().guide()
    wanted = [np.full(16, -1, dtype=np.int32)] * begin
    for token in tokens[begin:]:
        wanted.append(fresh.masks([])[0])
        fresh.accept([token])
    if params.structured is not None and params.structured.bound_token_id is not None:
        bound = tokens.index(BOUND)
        for at, token in enumerate(TRIGGER, bound + 1):
            wanted[at] = np.zeros(16, dtype=np.int32)
            wanted[at][token // 32] = 1 << token % 32
    seen = 0
    for _, taken, drafts, rows in watch.masks:
        assert taken == tokens[: len(taken)]
        for column in range(len(drafts) + 1):
            at = len(taken) + column
            if drafts[:column] == tokens[len(taken) : at] and at < len(tokens):
                assert (rows[column] == wanted[at]).all()
                seen += 1
    assert seen >= len(tokens)


@pytest.mark.parametrize("bound", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["trigger", "bound"])
def test_a_form_begins_at_every_place_of_a_window(
    plain: LLM, drafting: LLM, compiler: Compiler, bound: bool
) -> None:
    """Right drafts fill every window, so that the trigger ends at each of its rows in turn; wrong ones cut it there."""
    places = range(2, 2 + DRAFT_COUNT + 1)
    params = [triggered(place, bound) for place in places]
    want = run(plain, [(PROMPT, one) for one in params])
    for place, one, output in zip(places, params, want, strict=True):
        begin = output.token_ids.index(TRIGGER[0])
        assert output.token_ids[begin : begin + 2] == TRIGGER and begin == place + bound
        check_scripted(drafting, compiler, one, output, wrong=())
    check_scripted(drafting, compiler, params[0], want[0], wrong=(want[0].token_ids.index(TRIGGER[0]),))
    check_scripted(drafting, compiler, params[1], want[1], wrong=(want[1].token_ids.index(TRIGGER[1]),))


def check_scripted(
    llm: LLM, compiler: Compiler, params: SamplingParams, want: RequestOutput, wrong: Collection[int]
) -> list[int]:
    """Draft what is wanted but at the wrong places; returns the tokens that each step emitted."""
    script = dict(enumerate([*PROMPT, *want.token_ids]))
    for place in wrong:
        script[len(PROMPT) + place] = 70 if want.token_ids[place] != 70 else 71
    script_drafts(llm, script)
    before = llm.engine.stats.steps
    with watched() as watch:
        got = alone(llm, [(PROMPT, params)])[0]
    assert got.token_ids == want.token_ids
    if not wrong:
        assert llm.engine.stats.steps - before == 1 + -(-(len(want.token_ids) - 1) // (DRAFT_COUNT + 1))
    check_masks(watch, compiler, params, got)
    starts = [len(taken) for _, taken, _, _ in watch.masks]
    return [b - a for a, b in zip(starts, starts[1:], strict=False)]


def test_windows_cut_at_any_place(plain: LLM, drafting: LLM, compiler: Compiler) -> None:
    """Drafts are right but at random places."""
    params = SamplingParams(temperature=0.0, max_tokens=20, structured=FORM)
    want = run(plain, [(PROMPT, params)])[0]
    rng, emitted = random.Random(3), set[int]()
    for _ in range(2):
        wrong = rng.sample(range(1, len(want.token_ids)), 5)
        emitted.update(check_scripted(drafting, compiler, params, want, wrong))
    assert emitted >= {1, 2, 3, 4}

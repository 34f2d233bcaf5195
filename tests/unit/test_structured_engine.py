"""Grammars in the engine: what drafts, overlap, neighbours, preemption and transfer must not change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.shipped import tokenizer
from support.structured_engine import COUPLED, DRAFTS, OVERLAP, PLAIN, Work, alone, generator, open_engine, run, same
from support.structured_random import check_outputs, random_cases

from tandem.checkpoint.shipped import shipped_model
from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput
from tandem.engine.request_state import RequestState
from tandem.sampling.params import SamplingParams
from tandem.structured import Budget, Compiler, Guide, StructuredSpec

PRESSURE = {"cache.num_blocks": 4, "scheduler.max_slots": 6}  # of 16 tokens; the requests below need 17 together
TRIGGER = (61, 62)
SPECS = [
    StructuredSpec("json", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
                            "required": ["a"], "additionalProperties": False}),
    StructuredSpec("lark", 'start: "<" item+ ">"\nitem: /[a-z]{1,4}/ ";"'),
    StructuredSpec("choice", ["a stone", "a stony way", "the well behind the hill"]),
    StructuredSpec("json_object", None, TRIGGER),
    None,
]  # fmt: skip
GREEDY = slice(len(SPECS), None)  # of `requests`


def requests() -> list[Work]:
    """Each of `SPECS` at temperature 1, and two at 0; the one with a trigger is made to write it after three tokens."""
    work: list[Work] = []
    for place, spec in enumerate([*SPECS, *SPECS[:2]]):
        forced = (-1, -1, -1, *TRIGGER) if spec is not None and spec.trigger_token_ids else ()
        params = SamplingParams(
            temperature=1.0 if place < len(SPECS) else 0.0,
            seed=place,
            max_tokens=18,
            structured=spec,
            forced_token_ids=forced,
        )
        work.append((list(range(40 + place, 50 + 3 * place)), params))
    return work


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    made = Compiler(tokenizer(), 512)
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain(tiny: Path, compiler: Compiler) -> list[RequestOutput]:
    """Without drafts, all at once."""
    return run(open_engine(tiny, PLAIN, compiler=compiler), requests())


@pytest.fixture(scope="module")
def drafting(tiny: Path, compiler: Compiler) -> LLM:
    return open_engine(tiny, DRAFTS, compiler=compiler)


@pytest.fixture(scope="module")
def elsewhere(tiny: Path, compiler: Compiler) -> LLM:
    """An engine with other blocks, and with overlap."""
    return open_engine(tiny, DRAFTS, OVERLAP, {"cache.block_size": 32}, compiler=compiler)


@pytest.fixture(scope="module")
def rejected(drafting: LLM) -> list[RequestOutput]:
    """With drafts that are rejected by chance, all at once."""
    return run(drafting, requests())


def test_reference_runs_end_in_both_ways(plain: list[RequestOutput]) -> None:
    assert {output.finish_reason for output in plain} == {"stop", "length"}
    assert all(len(output.token_ids) > 2 for output in plain)
    assert plain[3].token_ids[3:5] == TRIGGER


def test_coupled_and_greedy_tokens_are_those_of_plain_decoding(
    tiny: Path, compiler: Compiler, plain: list[RequestOutput]
) -> None:
    llm = open_engine(tiny, COUPLED, OVERLAP, PRESSURE, compiler=compiler)
    same(run(llm, requests(), gap=1), plain)
    assert llm.engine.stats.preemptions > 0


def test_tokens_drawn_by_rejection_do_not_depend_on_the_others(
    tiny: Path, compiler: Compiler, drafting: LLM, rejected: list[RequestOutput], plain: list[RequestOutput]
) -> None:
    same(rejected[GREEDY], plain[GREEDY])
    assert [one.token_ids for one in rejected] != [one.token_ids for one in plain]  # it is another draw
    llm = open_engine(tiny, DRAFTS, OVERLAP, PRESSURE, compiler=compiler)
    same(run(llm, requests(), gap=1), rejected)
    assert llm.engine.stats.preemptions > 0
    same(alone(drafting, requests()[1:2]), rejected[1:2])


@pytest.mark.slow
def test_preemption_changes_nothing_without_drafts(
    tiny: Path, compiler: Compiler, plain: list[RequestOutput]
) -> None:
    llm = open_engine(tiny, PLAIN, OVERLAP, PRESSURE, compiler=compiler)
    same(run(llm, requests()), plain)
    assert llm.engine.stats.preemptions > 0


@pytest.mark.parametrize("steps", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("with_caches", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_request_goes_on_elsewhere_in_the_middle_of_its_grammar(
    drafting: LLM, elsewhere: LLM, rejected: list[RequestOutput], with_caches: bool, steps: int
) -> None:
    places, engine = (0, 3), drafting.engine
    ids = [engine.add_request(*requests()[place]) for place in places]
    for _ in range(steps):
        engine.step()
    moved = []
    for request in ids:
        state = RequestState.from_bytes(engine.export_request(request, with_caches).to_bytes())
        moved.append(elsewhere.engine.import_request(state))
        first, second = guide_of(drafting, request), guide_of(elsewhere, moved[-1])
        assert (first.masks([]) == second.masks([])).all() and first.active == second.active
        engine.cancel(request)
    found = finished(elsewhere)
    for request, place in zip(moved, places, strict=True):
        assert found[request].token_ids == rejected[place].token_ids
        assert found[request].finish_reason == rejected[place].finish_reason


def guide_of(llm: LLM, request: int) -> Guide:
    found = llm.engine._live[llm.engine._slot_of[request]].guide
    assert found is not None
    return found


def finished(llm: LLM) -> dict[int, RequestOutput]:
    """Outputs of an engine, stepped until it is idle."""
    pieces = []
    while not llm.engine.idle:
        pieces += llm.engine.step()
    return {piece.request_id: piece.output for piece in pieces if piece.output is not None}


def test_copies_have_grammars_of_their_own(drafting: LLM, rejected: list[RequestOutput]) -> None:
    prompt, params = requests()[0]
    ids = drafting.engine.add_copies(prompt, replace(params, n=2))
    found = finished(drafting)
    singles = run(drafting, [(prompt, replace(params, seed=(params.seed or 0) + copy)) for copy in range(2)])
    assert len({found[request].token_ids for request in ids}) == 2
    assert [found[request].token_ids for request in ids] == [output.token_ids for output in singles]


def test_a_request_is_cancelled_in_the_middle_of_its_grammar(drafting: LLM, rejected: list[RequestOutput]) -> None:
    work = requests()
    victim = drafting.engine.add_request(*work[1])
    other = drafting.engine.add_request(*work[0])
    for _ in range(3):
        drafting.engine.step()
    output = drafting.engine.cancel(victim)
    assert output is not None and output.finish_reason == "cancelled"
    assert output.token_ids == rejected[1].token_ids[: len(output.token_ids)] and output.token_ids
    assert finished(drafting)[other].token_ids == rejected[0].token_ids


SLOW = {"allOf": [{"type": "string", "pattern": f".{{0,50}}a.{{0,{n}}}"} for n in range(30)]}
BROKEN = [
    (StructuredSpec("regex", "a("), "unclosed"),
    (StructuredSpec("ebnf", "root ::= nowhere"), "nowhere"),
    (StructuredSpec("json", {"type": "integer", "minimum": 5, "maximum": 3}), "minimum"),
    (StructuredSpec("json", SLOW), "longer than 0.5 s"),
    (StructuredSpec("lark", 'start: "(" ("x" | "no" dead)\ndead: dead "b"'), "no token can follow"),
]


def test_a_failing_grammar_ends_its_request_alone(tiny: Path, rejected: list[RequestOutput]) -> None:
    """Grammars that cannot be made, that are too costly, and one whose dead end is met while it runs."""
    own = Compiler(tokenizer(), 512, Budget(seconds=0.5, workers=1))
    llm = open_engine(tiny, DRAFTS, OVERLAP, compiler=own)
    work = requests()
    into_the_end = tuple(tokenizer().encode("(no", add_bos=False))
    bad = [
        ([50, 51], SamplingParams(temperature=0.0, max_tokens=9, structured=spec, forced_token_ids=into_the_end))
        for spec, _ in BROKEN
    ]
    found = run(llm, [one for pair in zip(work, bad, strict=False) for one in pair] + work[len(bad) :])
    for place, (_, word) in enumerate(BROKEN):
        output = found[2 * place + 1]
        assert output.finish_reason == "error" and output.error is not None
        assert word in output.error.why, output.error
    assert found[9].token_ids == into_the_end
    same([*found[0:10:2], *found[10:]], rejected)
    own.close()


def test_random_forms_are_kept(compiler: Compiler) -> None:
    """Twelve forms and two free requests, with drafts and overlap."""
    llm = open_engine(shipped_model(), DRAFTS, OVERLAP, compiler=compiler)
    cases = random_cases(12, seed=4)
    assert check_outputs(cases, generator(llm, "Then he wrote:", 24, free=2, gap=1), compiler) >= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [PLAIN, DRAFTS], ids=["plain", "drafts"])
def test_500_random_forms_are_kept(drafts: Any) -> None:
    compiler = Compiler(tokenizer(), 512, Budget(waiting=500))
    pressure = {"cache.num_blocks": 60, "scheduler.max_slots": 20}
    llm = open_engine(shipped_model(), drafts, OVERLAP, pressure, compiler=compiler)
    cases = random_cases(500, seed=2)
    share = check_outputs(cases, generator(llm, "Then he wrote:", 200, free=20), compiler)
    print(f"{share:.3f} of 500 ended; {llm.engine.stats}")
    assert share >= 0.6 and llm.engine.stats.preemptions > 0
    compiler.close()


@pytest.mark.slow
def test_drafts_that_obey_the_masks_are_accepted_more(compiler: Compiler) -> None:
    """Without masks on drafts a form that the drafter would not write by itself stops them all."""
    spec = StructuredSpec("json", {"type": "array", "items": {"type": "integer"}, "minItems": 8})
    prompt = tokenizer().encode("Then he wrote:")
    work = [
        (prompt, SamplingParams(temperature=temperature, seed=1, max_tokens=40, structured=spec))
        for temperature in (0.0, 1.0)
    ]
    means = []
    for masked in (True, False):
        llm = open_engine(shipped_model(), DRAFTS, compiler=compiler)
        drafting = llm.engine._parts.runner._drafting
        assert drafting is not None
        if not masked:
            drafting._bits = lambda walkers, count: None  # type: ignore[method-assign]
        run(llm, work)
        means.append(llm.engine.metrics()["speculation"]["mean_accepted"])
    print(f"accepted drafts a step: {means[0]:.2f} with masks, {means[1]:.2f} without")
    assert means[0] > 2 * means[1]

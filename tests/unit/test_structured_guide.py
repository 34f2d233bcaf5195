"""Guides: masks with drafts equal masks after the same tokens, however they are grouped."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from support.shipped import tokenizer
from support.structured_random import Generate, Output, check_outputs, random_cases

from tandem.structured import Budget, Compiler, Guide, StructuredSpec
from tandem.structured.trigger import Trigger

VOCAB = 530  # 512 tokens and padding that ends inside a word
WORDS = 17
THINK_END = 496


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    made = Compiler(tokenizer(), VOCAB, Budget(seconds=30, workers=1))
    yield made
    made.close()


def guide_of(compiler: Compiler, spec: StructuredSpec) -> Guide:
    return compiler.submit(spec).result().guide()


def ids(text: str) -> list[int]:
    return tokenizer().encode(text, add_bos=False)


def allowed(row: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def texts(row: np.ndarray) -> set[str]:
    return {tokenizer().decode([token], skip_special=False) for token in allowed(row)}


def random_tokens(guide: Guide, rng: random.Random, most: int) -> list[int]:
    """Uniform among the allowed tokens, until the end token or `most`; the end token is not in the list."""
    tokens: list[int] = []
    while len(tokens) < most:
        token = rng.choice(allowed(guide.masks([])[0]))
        assert guide.accept([token]) == 1, guide.failed
        if token == tokenizer().eos_id:
            break
        tokens.append(token)
    return tokens


def plain_masks(compiler: Compiler, spec: StructuredSpec, tokens: Sequence[int]) -> list[np.ndarray]:
    """The mask before each token and behind the last, from matchers that saw nothing but the tokens so far."""
    rows = []
    trigger = list(spec.trigger_token_ids)
    grammar = StructuredSpec(spec.kind, spec.schema)
    for count in range(len(tokens) + 1):
        start = 0
        if trigger:
            begins = [at for at in range(count - len(trigger) + 1) if list(tokens[at : at + len(trigger)]) == trigger]
            if not begins:
                rows.append(np.full(WORDS, -1, dtype=np.int32))
                continue
            start = begins[0] + len(trigger)
        fresh = guide_of(compiler, grammar)
        for token in tokens[start:count]:
            fresh.accept([token])
        assert fresh.failed is None
        rows.append(fresh.masks([])[0])
    return rows


def check_any_grouping(guide: Guide, tokens: list[int], plain: list[np.ndarray], rng: random.Random) -> None:
    """Follow the tokens in random groups with right and wrong drafts; every row must be the plain one."""
    at = 0
    while at < len(tokens):
        drafts = tokens[at : at + rng.randint(0, 8)]
        right = len(drafts)
        barred = [token for token in range(VOCAB) if token not in allowed(plain[at + right])]
        if barred and rng.random() < 0.5:
            drafts = [*drafts, rng.choice(barred), rng.randrange(VOCAB)]
        if rng.random() < 0.5:
            walker = guide.walker()
            for index, token in enumerate(drafts):
                expected = plain[at + index] if index <= right else np.full(WORDS, -1)
                assert (walker.mask() == expected).all()
                assert walker.push(token) is (index < right)
            if rng.random() < 0.5:
                walker.rewind()
                assert (walker.mask() == plain[at]).all()
        if rng.random() < 0.8:
            rows = guide.masks(drafts)
            assert rows.shape == (1 + len(drafts), WORDS) and rows.dtype == np.int32
            assert (rows[: right + 1] == np.stack(plain[at : at + right + 1])).all()
            assert (rows[right + 1 :] == -1).all()
        taken = min(rng.randint(0, right + 1), len(tokens) - at)
        assert guide.accept(tokens[at : at + taken]) == taken
        at += taken
    assert (guide.masks([])[0] == plain[-1]).all()


def test_masks_do_not_depend_on_the_grouping(compiler: Compiler) -> None:
    rng = random.Random(5)
    for case in random_cases(16, seed=11):
        tokens = random_tokens(guide_of(compiler, case.spec), rng, 30)
        plain = plain_masks(compiler, case.spec, tokens)
        for _ in range(2):
            check_any_grouping(guide_of(compiler, case.spec), tokens, plain, rng)


@pytest.mark.parametrize("place", range(9))
def test_the_trigger_takes_effect_at_every_place_of_a_window(compiler: Compiler, place: int) -> None:
    """The window is a step's eight drafts; the trigger ends behind the draft `place` + 2."""
    spec = StructuredSpec("json", {"type": "object", "additionalProperties": {"type": "integer"}}, (THINK_END, 300))
    answer = ids('{"a": 12, "b": 3}')
    free = [THINK_END, 300][:1] * min(place, 1) + list(range(100, 100 + max(place - 1, 0)))
    tokens = [*free, THINK_END, 300, *answer]
    plain = plain_masks(compiler, spec, tokens)
    assert (plain[place + 1] == -1).all() and texts(plain[place + 2]) == {"{"}
    guide = guide_of(compiler, spec)
    assert (guide.masks(tokens[:8]) == np.stack(plain[:9])).all()
    walker = guide.walker()
    assert all(walker.push(token) for token in tokens)
    assert not guide.active and (walker.mask() == plain[-1]).all()
    rng = random.Random(place)
    for _ in range(4):
        check_any_grouping(guide_of(compiler, spec), tokens, plain, rng)


def test_the_bound_token_forces_the_trigger(compiler: Compiler) -> None:
    guide = guide_of(compiler, StructuredSpec("choice", ["yes"], (7, 7, 9), bound_token_id=20))
    drafts = [7, 20, 7, 7, 9, *ids("yes"), 1]
    rows = guide.masks(drafts)
    assert (rows[:2] == -1).all()
    assert [allowed(row) for row in rows[2:5]] == [[7], [7], [9]]
    assert [texts(row) for row in rows[5:-2]] == [{tokenizer().decode([token])} for token in ids("yes")]
    assert allowed(rows[-2]) == [1] and allowed(rows[-1]) == [1]
    assert guide.accept(drafts[:2]) == 2 and guide.active
    assert guide.accept([7, 9]) == 1
    assert guide.failed is not None and "trigger's token 7 is forced" in guide.failed.why


def test_the_bound_token_does_not_end_a_trigger_that_it_is_part_of(compiler: Compiler) -> None:
    guide = guide_of(compiler, StructuredSpec("choice", ["yes"], (5, 20), bound_token_id=20))
    guide.accept([5, 20])
    assert texts(guide.masks([])[0]) == {tokenizer().decode([ids("yes")[0]])}


def test_the_trigger_automaton_finds_what_a_search_finds() -> None:
    rng = random.Random(1)
    for _ in range(300):
        sought = [rng.randrange(2) for _ in range(rng.randint(1, 5))]
        trigger, matched = Trigger(sought), 0
        stream = [rng.randrange(2) for _ in range(30)]
        for count, token in enumerate(stream, 1):
            matched = trigger.step(matched, token)
            ends = [length for length in range(len(sought) + 1) if stream[:count][count - length :] == sought[:length]]
            assert matched == max(length for length in ends if length <= count)
            if matched == len(sought):
                break


def test_the_end_token_is_allowed_where_the_output_may_end(compiler: Compiler) -> None:
    guide = guide_of(compiler, StructuredSpec("regex", "a|a+b"))
    assert 1 not in allowed(guide.masks([])[0])
    guide.accept(ids("a"))
    assert not guide.terminated and 1 in allowed(guide.masks([])[0])
    rows = guide.masks([*ids("a"), *ids("b")])
    assert 1 not in allowed(rows[1]) and allowed(rows[2]) == [1]
    guide.accept([*ids("a"), *ids("b")])
    assert guide.terminated and guide.failed is None
    assert guide.accept([1, 1]) == 2 and guide.terminated
    assert guide.accept(ids("a")) == 0
    assert guide.failed is not None and "behind the end token" in guide.failed.why


def test_an_early_end_token_completes_the_output(compiler: Compiler) -> None:
    guide = guide_of(compiler, StructuredSpec("regex", "a+"))
    guide.accept([*ids("a"), 1])
    assert guide.terminated and allowed(guide.masks([1])[1]) == [1]


def test_special_and_padding_tokens_are_never_allowed_in_text(compiler: Compiler) -> None:
    row = guide_of(compiler, StructuredSpec("regex", r"(.|\n){3}")).masks([])[0]
    assert max(allowed(row)) < 495
    assert not {0, 1, 2} & set(allowed(row))


def test_lark_can_name_special_tokens(compiler: Compiler) -> None:
    guide = guide_of(compiler, StructuredSpec("lark", 'start: <think> "a" <[496]>'))
    assert allowed(guide.masks([])[0]) == [495]
    guide.accept([495, *ids("a")])
    assert allowed(guide.masks([])[0]) == [496]


def test_a_wrong_token_fails_this_guide_only(compiler: Compiler) -> None:
    spec = StructuredSpec("choice", ["yes", "no"])
    guide, other = guide_of(compiler, spec), guide_of(compiler, spec)
    assert guide.accept([*ids("y"), 2, 3]) == 1
    assert guide.failed is not None and "token 2 is not allowed" in guide.failed.why
    assert (guide.masks([5, 6]) == -1).all() and guide.accept(ids("n")) == 0
    assert not guide.active and not guide.terminated
    assert (guide.walker().mask() == -1).all() and not guide.walker().push(3)
    assert other.accept(ids("no")) == len(ids("no")) and other.terminated
    guide.replay(ids("no"))
    assert guide.failed is None and guide.terminated


@pytest.mark.parametrize("token", [-1, VOCAB, 1 << 40])
def test_tokens_outside_the_vocabulary_fail(compiler: Compiler, token: int) -> None:
    for spec in (StructuredSpec("regex", "a*"), StructuredSpec("regex", "a*", (5,))):
        guide = guide_of(compiler, spec)
        assert (guide.masks([token])[1] == -1).all() and guide.failed is None
        assert guide.accept([token]) == 0 and guide.failed is not None


def test_a_state_without_a_way_on_fails_when_it_is_reached(compiler: Compiler) -> None:
    guide = guide_of(compiler, StructuredSpec("lark", 'start: "x"* ("yes" | "no" dead)\ndead: dead "b"'))
    drafts = ids("no")
    rows = guide.masks(drafts)
    assert (rows[-1] == -1).all() and guide.failed is None
    assert texts(guide.masks([])[0]) == {"x", "y", "n"}  # nothing is left of the walk into the dead end
    assert guide.accept(drafts) == len(drafts)
    guide.masks([])
    assert guide.failed is not None and "no token can follow" in guide.failed.why


def test_replay_gives_the_state_of_the_same_tokens(compiler: Compiler) -> None:
    spec = StructuredSpec("json_object", None, (300,))
    tokens = [5, 300, *ids('{"a": [1, "b')]
    once = guide_of(compiler, spec)
    once.accept(tokens)
    again = guide_of(compiler, spec)
    again.accept([300, *ids("[[")])
    again.walker().push(ids("1")[0])
    again.replay(tokens)
    assert (again.masks([]) == once.masks([])).all() and again.active


def uniform(compiler: Compiler, most: int) -> Generate:
    """A generator that draws uniformly among the allowed tokens."""

    def generate(specs: Sequence[StructuredSpec]) -> list[Output]:
        rng = random.Random(3)
        outputs = []
        for spec in specs:
            guide = guide_of(compiler, spec)
            tokens = random_tokens(guide, rng, most)
            outputs.append(Output(tokens, tokenizer().decode(tokens), guide.terminated))
        return outputs

    return generate


def test_random_forms_are_kept(compiler: Compiler) -> None:
    cases = random_cases(60, seed=1)
    assert check_outputs(cases, uniform(compiler, 120), compiler) > 0.6


@pytest.mark.slow
def test_500_random_forms_are_kept(compiler: Compiler) -> None:
    cases = random_cases(500, seed=2)
    assert check_outputs(cases, uniform(compiler, 300), compiler) > 0.6

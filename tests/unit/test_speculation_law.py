"""The law of speculative sampling: exact measures of the random numbers, and where the ops change their answers."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
import torch
from support.speculative import BANNED, WORD, integer_weights, seed_for, signed, table, verify

from tandem.ops._residual import normalised, residual
from tandem.sampling.rng import uniform53

DRAWS, UNIT = 2**53, 2**42


def shares(weight: list[int]) -> list[int]:
    """How many of the 2^53 draws give each token: floor(u * sum / 2^53) lies in [start, end) of it."""
    total, ends = sum(weight), list(accumulate(weight))
    first = [-(-end * DRAWS // total) for end in [0, *ends]]  # the least u that reaches an end
    return [after - before for before, after in zip(first[:-1], first[1:], strict=True)]


def taken(p: int, q: int) -> int:
    """How many draws take a draft of proposal mass p and target mass q: floor(u * p / 2^53) < q."""
    if p <= q:
        return DRAWS if q else 0
    return -(-q * DRAWS // p)


class Law:
    """Of one row that has a draft: what is emitted, in units of 2^-148 = 2^-42 (draft) * 2^-53 * 2^-53."""

    def __init__(self, target: list[int], proposal: list[int]) -> None:
        q, p = (normalised(torch.tensor([w]))[0].tolist() for w in (target, proposal))
        left = residual(torch.tensor([q]), torch.tensor([p]))[0].tolist()
        counts = [taken(*pair) for pair in zip(p, q, strict=True)]
        refused = sum(mass * (DRAWS - count) for mass, count in zip(p, counts, strict=True))
        self.accepted = [mass * count * DRAWS for mass, count in zip(p, counts, strict=True)]
        self.rejected = [refused * share for share in shares(left)]
        self.fresh = [share << 95 for share in shares(target)]
        self.target, self.total = target, sum(target)


LAW_BITS = 42 + 53 + 53


def worst(laws: list[Law], gamma: int, length: int) -> float:
    """Largest difference of the probability of a string of tokens, over all of a length, from the target's.

    Blocks of gamma drafts follow each other; at each token of the string the state is how many drafts of the block
    were taken so far.
    """
    largest = 0.0

    def walk(previous: int, states: list[int], exact: int, scale: int, depth: int) -> None:
        nonlocal largest
        if depth == length:
            found, whole = sum(states), 1 << LAW_BITS * length
            difference = abs(found * scale - exact * whole)
            largest = max(largest, difference * 2**80 // (whole * scale) / 2**80)
            return
        law = laws[previous]
        for token in range(len(laws)):
            after = [0] * (gamma + 1)
            for j, mass in enumerate(states[:gamma]):
                after[j + 1] += mass * law.accepted[token]
                after[0] += mass * law.rejected[token]
            after[0] += states[gamma] * law.fresh[token]
            walk(token, after, exact * law.target[token], scale * law.total, depth + 1)

    walk(0, [1] + [0] * gamma, 1, 1, 0)
    return largest


@pytest.mark.parametrize("gamma", range(1, 9))
def test_the_joint_law_of_a_block_is_the_target_law(gamma: int) -> None:
    """All strings of 3 tokens, one longer than the block: their exact probabilities, over every random number."""
    source = random.Random(gamma)
    pairs = zip(integer_weights(table(source, 3)).tolist(), integer_weights(table(source, 3)).tolist(), strict=True)
    assert worst([Law(q, p) for q, p in pairs], gamma, gamma + 1) < (gamma + 1) * 2.0**-40


@pytest.mark.parametrize("gamma", [1, 3])
def test_the_joint_law_for_hard_proposals(gamma: int) -> None:
    """4 tokens: a proposal on one token that the target bans, the same law, greedy against flat, and one token only."""
    whole = 1 << 30
    targets = [[0, whole, 5, whole - 1], [7, whole, 3, whole // 3], [1, 1, 1, whole], [whole, 0, 0, 0]]
    proposals = [[whole, 0, 0, 0], [7, whole, 3, whole // 3], [whole] * 4, [1, 0, 0, whole]]
    laws = [Law(q, p) for q, p in zip(targets, proposals, strict=True)]
    assert worst(laws, gamma, 4) < 4 * 2.0**-40
    assert laws[0].accepted == [0] * 4 and laws[1].rejected == [0] * 4


def test_the_measure_would_see_a_residual_that_is_not_renormalised() -> None:
    """The same enumeration with the target in place of the residual is far off."""
    law = Law([1 << 30, 1 << 28], [1 << 28, 1 << 30])
    law.rejected = [sum(law.rejected) * w // law.total for w in law.target]
    assert worst([law, law], 1, 2) > 0.01


@pytest.mark.parametrize("case_seed", range(6))
def test_the_op_changes_its_answer_just_where_the_measure_says(case_seed: int) -> None:
    """At the last draw that takes the draft and the first that does not, and at each edge of the residual."""
    source = random.Random(case_seed)
    logits, other = table(source, 4)[:1], table(source, 4)[1:2]
    proposal, position = integer_weights(other), 1000 + case_seed
    q, p = normalised(integer_weights(logits))[0].tolist(), normalised(proposal)[0].tolist()

    def ask(draft: int, uniform: int, case: int) -> tuple[int, int]:
        seed = torch.tensor([signed(seed_for(uniform, position, case))])
        assert uniform53(seed.item() % WORD, position, case) == uniform
        found = verify(
            logits, torch.tensor([draft]).int(), proposal.to(torch.int32), seed, torch.tensor([position])
        )
        return int(found[0]), int(found[1])

    for draft in range(4):
        count = taken(p[draft], q[draft])
        if count:
            assert ask(draft, count - 1, 2) == (draft, 1)
        if count < DRAWS:
            token, accepted = ask(draft, count, 2)
            assert accepted == 0 and token != draft and q[token] > p[token]
    hopeless = next((t for t in range(4) if q[t] == 0 and p[t] > 0), None)
    if hopeless is None:
        return
    left = residual(torch.tensor([q]), torch.tensor([p]))[0].tolist()
    end = 0
    for token, share in enumerate(shares(left)):
        if share:
            assert ask(hopeless, end, 1) == (token, 0) and ask(hopeless, end + share - 1, 1) == (token, 0)
        end += share
    assert end == DRAWS


def test_some_of_these_tables_have_a_hopeless_draft() -> None:
    """Else the edges of the residual would not have been tried."""
    found = 0
    for case_seed in range(6):
        source = random.Random(case_seed)
        q, p = (integer_weights(t)[0].tolist() for t in (table(source, 4)[:1], table(source, 4)[1:2]))
        found += any(a == 0 and b > 0 for a, b in zip(q, p, strict=True))
    assert found >= 2


def test_a_draw_of_zero_takes_no_draft_without_mass() -> None:
    """floor(0 * P / 2^53) = 0, which is below Q where the target has any mass, and not below 0."""
    logits = torch.tensor([[0.0, BANNED, -9.0]])
    proposal = torch.full((1, 3), 1 << 30, dtype=torch.int32)
    seed = torch.tensor([signed(seed_for(0, 77, 2))])
    for draft, want in ((0, 1), (1, 0), (2, 1)):
        token, accepted = verify(logits, torch.tensor([draft]).int(), proposal, seed, torch.tensor([77]))
        assert int(accepted) == want and (int(token) == draft) == bool(want)


def test_masses_sum_to_the_unit_and_floor_the_shares() -> None:
    source = random.Random(5)
    for vocab in (1, 2, 7, 1000):
        for top in (1, 3, 1 << 30):
            weight = [source.randint(0, top) for _ in range(vocab)]
            weight[source.randrange(vocab)] = top
            mass = normalised(torch.tensor([weight]))[0].tolist()
            heaviest = weight.index(max(weight))
            assert sum(mass) == UNIT
            others = [(m, w) for i, (m, w) in enumerate(zip(mass, weight, strict=True)) if i != heaviest]
            assert all(m == w * UNIT // sum(weight) for m, w in others)
    assert normalised(torch.tensor([[0, 0, 0]])).tolist() == [[0, 0, 0]]
    third = UNIT // 3  # of three equal largest weights the first takes the rest
    assert normalised(torch.tensor([[1 << 30] * 3])).tolist() == [[UNIT - 2 * third, third, third]]


def test_the_long_division_holds_at_the_largest_sum() -> None:
    """2^23 tokens of 2^30 and less: the sum is nearly 2^53, and the remainders are as large as they get."""
    weight = torch.full((1, 1 << 23), (1 << 30) - 1)
    weight[0, 5] = 1 << 30
    mass = normalised(weight)[0]
    total = (1 << 53) - (1 << 23) + 1
    share = ((1 << 30) - 1) * UNIT // total
    assert int(mass[0]) == share and int(mass[-1]) == share
    assert int(mass[5]) == UNIT - share * ((1 << 23) - 1)


@pytest.mark.parametrize("draft", range(3))
def test_coupled_rows_turn_at_the_edges_of_the_target_whatever_is_offered(draft: int) -> None:
    """So their law is shares / 2^53 each, on its own at each position; the draft decides nothing but `accepted`."""
    logits = torch.tensor([[1.0, BANNED, 0.5, -2.0]])
    weight = integer_weights(logits)[0].tolist()
    proposal, end = torch.full((1, 4), 1 << 30, dtype=torch.int32), 0
    for token, share in enumerate(shares(weight)):
        assert abs(share / DRAWS - weight[token] / sum(weight)) < 2.0**-40
        for uniform in (end, end + share - 1) if share else ():
            seed = torch.tensor([signed(seed_for(uniform, 9, 0))])
            found = verify(logits, torch.tensor([draft]).int(), proposal, seed, torch.tensor([9]), coupled=True)
            assert [int(x) for x in found] == [token, int(token == draft)]
        end += share
    assert end == DRAWS

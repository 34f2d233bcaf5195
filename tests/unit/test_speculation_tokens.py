"""Tokens of speculative sampling: an oracle in plain integers, what never changes, and counts with fixed seeds."""

from __future__ import annotations

import random
from functools import cache
from itertools import accumulate

import pytest
import torch
from support.speculative import WORD, integer_weights, numbers, table, verify

from tandem.ops.aux_accept import accept
from tandem.ops.draft_sample import draft_sample
from tandem.ops.sample import sample
from tandem.sampling.rng import uniform53

Tensor = torch.Tensor
UNIT = 2**42


def expected(
    targets: list[list[int]], offers: list[list[int]], seed: int, gamma: int, coupled: bool, most: int
) -> list[int]:
    """The oracle: tokens of one request, blocks of gamma drafts one after the other, in plain integers."""

    def masses(weight: list[int]) -> list[int]:
        parts = [w * UNIT // sum(weight) for w in weight]
        parts[weight.index(max(weight))] += UNIT - sum(parts)
        return parts

    def pick(weight: list[int], at: int) -> int:
        return next(i for i, end in enumerate(accumulate(weight)) if end > at)

    tokens, previous = [], 0
    while len(tokens) < most:
        drafts, before = [], previous
        for j in range(gamma):
            stream = seed if coupled else seed + 1_000_000_007
            before = pick(masses(offers[before]), uniform53(stream, len(tokens) + j) >> 11)
            drafts.append(before)
        for draft in [*drafts, None]:
            position, target, offer = len(tokens), targets[previous], masses(offers[previous])
            q = masses(target)
            token = pick(target, uniform53(seed, position) * sum(target) >> 53)
            if draft is not None and not coupled:
                token = draft
                if uniform53(seed, position, 2) * offer[draft] >> 53 >= q[draft]:
                    left = [max(a - b, 0) for a, b in zip(q, offer, strict=True)]
                    token = pick(left, uniform53(seed, position, 1) * sum(left) >> 53)
            tokens.append(token)
            previous = token
            if token != draft:
                break
    return tokens[:most]


def generated(
    target: Tensor, offer: Tensor, seeds: Tensor, gamma: int, coupled: bool, most: int
) -> tuple[list[list[int]], list[int]]:
    """The same with the ops, all requests at once; also how many drafts each step took, over all."""
    count = len(seeds)
    last_token, length = torch.zeros(count + 1, dtype=torch.int32), torch.full((count + 1,), -1, dtype=torch.int32)
    tokens: list[list[int]] = [[] for _ in range(count)]
    emissions: list[int] = []
    slots = torch.arange(count, dtype=torch.int32)
    while min(len(t) for t in tokens) < most:
        before, base = last_token[:-1].clone(), length[:-1].to(torch.int64)
        drafts, proposal, previous = [], [], [before]
        for j in range(gamma):
            made = draft_sample(
                offer[previous[-1].long()], seed=seeds, position=base + 1 + j, coupled=coupled, filtered=False,
                **numbers(count),
            )  # fmt: skip
            drafts.append(made[0])
            proposal.append(made[1])
            previous.append(made[0])
        rows = count * (gamma + 1)
        column = torch.arange(gamma + 1).repeat(count)
        place = torch.arange(count).repeat_interleave(gamma + 1)
        known = torch.stack(previous, 1).flatten().long()
        token, accepted = verify(
            target[known],
            torch.stack(drafts, 1).flatten(),
            torch.stack(proposal, 1).flatten(0, 1),
            seeds[place],
            base[place] + 1 + column,
            coupled=coupled,
            draft_row=torch.where(column < gamma, place * gamma + column, -1).int(),
        )
        first = torch.arange(0, rows, gamma + 1, dtype=torch.int32)
        sizes = torch.full((count,), gamma + 1, dtype=torch.int32)
        emitted = accept(token, accepted, first, sizes, base.int(), slots, last_token, length)
        emissions += emitted.tolist()
        for i, (start, many) in enumerate(zip(first.tolist(), emitted.tolist(), strict=True)):
            tokens[i] += token[start : start + many].tolist()
        assert length[:-1].tolist() == [len(t) - 1 for t in tokens]
        assert last_token[:-1].tolist() == [t[-1] for t in tokens]
    return [t[:most] for t in tokens], emissions


@cache
def tables(seed: int) -> tuple[Tensor, Tensor]:
    source = random.Random(seed)
    target = table(source, 5)
    return target, target + torch.randn((5, 5), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("gamma", range(1, 9))
def test_tokens_are_those_of_the_oracle(gamma: int, coupled: bool) -> None:
    """Six requests of 24 tokens; every number of drafts taken occurs for small blocks, and both ends for all."""
    target, offer = tables(gamma)
    seeds = torch.tensor([3, -5, 1 << 62, 99 * gamma, 12345, -(1 << 63)])
    found, emissions = generated(target, offer, seeds, gamma, coupled, 24)
    weight = [integer_weights(t).tolist() for t in (target, offer)]
    assert found == [expected(*weight, seed % WORD, gamma, coupled, 24) for seed in seeds.tolist()]
    assert min(emissions) == 1 and len(set(emissions)) > 1


@pytest.mark.parametrize("gamma", [1, 4])
def test_coupled_drafts_never_change_the_text(gamma: int) -> None:
    """The tokens are those that `sample` draws one at a time, whatever is proposed."""
    target, offer = tables(gamma)
    seeds = torch.tensor([8, -77, 1 << 40])
    found, _ = generated(target, offer, seeds, gamma, True, 20)
    rules = numbers(3)
    previous, plain = torch.zeros(3, dtype=torch.int64), []
    for position in range(20):
        at = torch.full((3,), position)
        token, *_ = sample(
            target[previous], rules["temperature"], rules["top_p"], rules["top_k"], seeds, at, False
        )
        plain.append(token.tolist())
        previous = token.long()
    assert found == [list(column) for column in zip(*plain, strict=True)]


def test_greedy_rows_take_the_argmax_and_nothing_else() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [0.0, 2.0, 1.0], [0.0, 2.0, 2.0]])
    proposal = torch.zeros((3, 3), dtype=torch.int32)
    proposal[torch.arange(3), torch.tensor([1, 2, 2])] = 1 << 30
    for seed in range(20):
        token, accepted = verify(
            logits, torch.tensor([1, 2, 2]).int(), proposal, torch.full((3,), seed), torch.arange(3),
            temperature=torch.zeros(3),
        )  # fmt: skip
        assert token.tolist() == [1, 1, 1] and accepted.tolist() == [1, 0, 0]


def chi_square(counts: list[int], law: list[float]) -> float:
    total = sum(counts)
    return sum((n - total * p) ** 2 / (total * p) for n, p in zip(counts, law, strict=True))


def test_opposite_laws_accept_a_fifth_and_give_the_target() -> None:
    """P = (0.9, 0.1), Q = (0.1, 0.9): min(P, Q) sums to 0.2.  100000 requests, fixed seeds.

    5 standard deviations of the acceptance are 0.0064; 25 is the chi-square of one degree of freedom at 5.7e-7.
    """
    count = 100_000
    target, offer = (torch.tensor([p]).log().expand(count, 2) for p in ((0.1, 0.9), (0.9, 0.1)))
    seeds, position = torch.arange(count) * 977 + 11, torch.arange(count) % 4096
    drafts, proposal = draft_sample(
        offer, seed=seeds, position=position, coupled=False, filtered=False, **numbers(count)
    )
    token, accepted = verify(target, drafts, proposal, seeds, position)
    assert abs(float(accepted.float().mean()) - 0.2) < 0.0064
    assert chi_square(torch.bincount(drafts, minlength=2).tolist(), [0.9, 0.1]) < 25
    assert chi_square(torch.bincount(token, minlength=2).tolist(), [0.1, 0.9]) < 25


def test_coupled_drafts_meet_where_the_draws_do() -> None:
    """P = (0.9, 0.1), Q = (0.1, 0.9): one u gives (0, 0) below 0.1, (1, 1) above 0.9, so a fifth is accepted too."""
    count = 100_000
    target, offer = (torch.tensor([p]).log().expand(count, 2) for p in ((0.1, 0.9), (0.9, 0.1)))
    seeds, position = torch.arange(count) * 977 + 11, torch.arange(count) % 4096
    drafts, proposal = draft_sample(
        offer, seed=seeds, position=position, coupled=True, filtered=False, **numbers(count)
    )
    token, accepted = verify(target, drafts, proposal, seeds, position, coupled=True)
    assert abs(float(accepted.float().mean()) - 0.2) < 0.0064
    assert chi_square(torch.bincount(token, minlength=2).tolist(), [0.1, 0.9]) < 25


def test_joint_counts_of_a_block_of_two() -> None:
    """The first 2 tokens of 20000 requests over 3 tokens, with the ops: 9 cells, 8 degrees of freedom at 1e-6."""
    source = random.Random(4)
    laws = [torch.tensor([[source.uniform(-1, 1) for _ in range(3)] for _ in range(3)]) for _ in range(2)]
    target, offer = (torch.softmax(law, -1) for law in laws)
    counts, emissions = [0] * 9, set[int]()
    for seeds in (torch.arange(20_000) * 31 + 7).split(500):
        found, steps = generated(target.log(), offer.log(), seeds, 2, False, 2)
        emissions.update(steps)
        for first, second in found:
            counts[3 * first + second] += 1
    assert chi_square(counts, [float(target[0, a] * target[a, b]) for a in range(3) for b in range(3)]) < 42.7
    assert emissions == {1, 2, 3}

"""Filters, draws and verdicts of random rows, exact given the integer weights of the kernels themselves."""

from __future__ import annotations

import pytest
import torch

from tandem.backends.ascend import table
from tandem.contract.backend import Backend
from tandem.ops._fixed_cdf import draw, kept_tokens, uniform53
from tandem.ops._residual import DRAFT_STREAM, draw_proposal, normalised, reject_or_take

Tensor = torch.Tensor
ROWS = 9
SHAPES = {"smooth": 131, "integers": 37, "eighths": 1000, "a-third-banned": 5000, "flat": 300, "bf16": 9001}


def rows_of(shape: str, generator: torch.Generator) -> Tensor:
    """Logits with as many ties as the shape says, of a vocabulary of its own."""
    x = torch.randn((ROWS, SHAPES[shape]), generator=generator) * 3
    if shape == "a-third-banned":
        x[:, ::3] = float("-inf")
    edits = {
        "integers": x.round(),
        "eighths": (x * 8).round() / 8,
        "flat": x * 0.001,
        "bf16": x.bfloat16().float(),
    }
    return edits.get(shape, x)


class Numbers:
    """Sampling numbers of random rows; the first is greedy, and every filter is off in some."""

    def __init__(self, vocab: int, generator: torch.Generator) -> None:
        def uniform() -> Tensor:
            return torch.rand(ROWS, generator=generator)

        self.temperature = uniform() * 2 + 0.05
        self.temperature[0] = 0.0
        self.top_p = uniform() * 0.98 + 0.02
        self.top_p[::4] = 1.0
        self.top_k = torch.randint(1, vocab // 2 + 2, (ROWS,), generator=generator).to(torch.int32)
        self.top_k[::3] = -1
        self.min_p = uniform() ** 4
        self.min_p[::2] = 0.0
        self.seed = torch.randint(-(2**62), 2**62, (ROWS,), generator=generator)
        self.position = torch.randint(0, 100_000, (ROWS,), generator=generator)

    @property
    def filters(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.top_p, self.top_k, self.min_p

    @property
    def place(self) -> tuple[Tensor, Tensor]:
        return self.seed, self.position


@pytest.mark.parametrize("shape", SHAPES)
def test_exact_given_the_weights(shape: str, ascend: Backend) -> None:
    generator = torch.Generator().manual_seed(11)
    logits = rows_of(shape, generator)
    numbers = Numbers(logits.shape[1], generator)
    ops = table.implementations()
    off = (torch.ones(ROWS), torch.full((ROWS,), -1, dtype=torch.int32), torch.zeros(ROWS))
    plain = ops["draft_sample"](logits, numbers.temperature, *off, *numbers.place, True, False)[1].long()
    kept = torch.where(kept_tokens(logits, plain, *numbers.filters), plain, 0)
    kept[0] = plain[0]  # a greedy row has one token, whatever the filters say
    token, weight = ops["draft_sample"](logits, numbers.temperature, *numbers.filters, *numbers.place, False, True)
    assert torch.equal(weight.long(), kept)
    stream = uniform53(numbers.seed + DRAFT_STREAM, numbers.position)
    assert torch.equal(token.long(), draw_proposal(normalised(kept), stream))
    filters = (numbers.top_p, numbers.top_k)
    drawn = ops["sample"](logits, numbers.temperature, *filters, *numbers.place, True, numbers.min_p)[0].long()
    assert torch.equal(drawn, draw(kept, uniform53(*numbers.place)))

    other = logits + torch.randn(logits.shape, generator=generator)
    drafts, offers = ops["draft_sample"](other, numbers.temperature, *off, *numbers.place, False, False)
    judged = torch.randperm(ROWS, generator=generator).to(torch.int32)
    judged[2::7] = -1
    forced = torch.full((ROWS,), -1, dtype=torch.int32)
    forced[1::5] = 3
    arguments = (numbers.temperature, *numbers.filters, *numbers.place, forced, drafts, offers, judged)
    told, accepted, _, _ = ops["spec_verify"](logits, *arguments, False, True)
    row = judged.clamp_min(0).long()
    draft = torch.where(judged >= 0, drafts[row], -1).long()
    law = (normalised(kept), normalised(offers[row].long()))
    wanted = torch.where(draft >= 0, reject_or_take(*law, draft.clamp_min(0), *numbers.place), drawn)
    wanted = torch.where(forced >= 0, forced.long(), wanted)
    assert torch.equal(told.long(), wanted)
    assert torch.equal(accepted.bool(), (draft >= 0) & (wanted == draft))

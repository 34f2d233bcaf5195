"""Sampling ops on more seeds than the kit draws, at a large vocabulary, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.runner import plan_of

from tandem.conformance.checks import values
from tandem.conformance.derive.sampling import log_softmax, uniform
from tandem.conformance.stage import Stage
from tandem.contract.opspec import OP_TABLE

CASES = [
    pytest.param(op, case, id=f"{op}-{case.name}")
    for op in (
        *("sample", "process_logits", "top_logprobs", "adjust_logits", "mask_logits"),
        *("spec_verify", "draft_sample", "penalize_logits", "aux.accept", "aux.verify_rows"),
    )
    for case in OP_TABLE[op].cases
]


@pytest.mark.parametrize(("op", "case"), CASES)
@pytest.mark.parametrize("seed", [1, 2])
def test_further_seeds(op: str, case: object, seed: int) -> None:
    assert values(Stage(plan_of("composite"), OP_TABLE[op], case, seed=seed))


def test_the_draw_of_a_known_seed() -> None:
    """SplitMix64 of 0 is a published number; its 53 high bits are the draw at position 0."""
    assert uniform(0, 0) == 0xE220A8397B1DCDAF >> 11


@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
def test_process_logits_at_a_large_vocabulary(spread: float) -> None:
    """129280 tokens, from nearly flat to one that holds almost everything."""
    logits = torch.randn((2, 129280), generator=torch.Generator().manual_seed(2)) * spread
    arguments = {
        "logits": logits,
        "temperature": torch.ones(2),
        "top_p": torch.ones(2),
        "top_k": torch.full((2,), -1, dtype=torch.int32),
    }
    table = OP_TABLE["process_logits"].reference(**arguments, filtered=False).numpy()
    for got, row in zip(table, logits.numpy(), strict=True):
        exact = log_softmax((row - row.max()).astype(np.float64))
        assert (np.abs(got - exact) <= 4 * np.spacing(np.abs(exact).astype(np.float32))).all()


def test_adjust_logits_adds_up_values_of_one_place() -> None:
    logits = torch.zeros(2, 3)
    place = torch.ones(3, dtype=torch.int32)
    OP_TABLE["adjust_logits"].reference(logits, place, place + 1, torch.tensor([1.0, 2.0, 4.0]))
    assert logits.tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, 7.0]]

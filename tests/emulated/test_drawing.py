"""Paths of the kernels that draw and edit which no case of an op reaches: rows of several chunks, crowded places."""

from __future__ import annotations

import pytest
import torch

from tandem.backends.cuda.kernels.adjust_logits import BLOCK as ENTRIES
from tandem.backends.cuda.kernels.adjust_logits import adjust_logits
from tandem.backends.cuda.kernels.process_logits import process_logits
from tandem.backends.cuda.kernels.sample import sample
from tandem.ops.process_logits import process_logits as plain_process
from tandem.ops.sample import normal_logits, sampling_arguments
from tandem.ops.sample import sample as plain_sample

VOCAB = 9001


@pytest.mark.parametrize(("top_p", "top_k"), [(0.5, -1), (1.0, 5000), (0.9, 4097)])
def test_a_plateau_is_cut_by_id_across_chunks(top_p: float, top_k: int) -> None:
    logits = torch.full((1, VOCAB), -1.0)
    logits[0, ::3] = 2.0
    arguments = sampling_arguments(logits, 1.0, top_p, top_k)
    assert torch.equal(process_logits(**arguments).isinf(), plain_process(**arguments).isinf())


def test_filters_keep_what_a_sort_keeps() -> None:
    """Values around zero, where images are dense, and both zeros among them."""
    logits = normal_logits(3, 3, VOCAB, 1.0)
    logits[1] *= 1e-6
    logits[2] = torch.where(logits[2].abs() < 0.5, -0.0 * logits[2], logits[2])
    arguments = sampling_arguments(logits, 0.9, 0.6, -1)
    assert torch.equal(process_logits(**arguments).isinf(), plain_process(**arguments).isinf())


def test_draws_from_every_chunk() -> None:
    rows = 12
    arguments = sampling_arguments(normal_logits(5, 1, VOCAB, 1.0).expand(rows, -1).contiguous(), 1.0, 1.0, -1)
    arguments |= {"seed": torch.arange(rows), "position": torch.arange(rows) * 7}
    token, _, _ = sample(**arguments)
    assert torch.equal(token, plain_sample(**arguments)[0])
    assert len((token // 4096).unique()) == 3


def test_values_for_one_place_add_up_in_the_order_of_the_list() -> None:
    generator = torch.Generator().manual_seed(1)
    count = 2 * ENTRIES + 9
    row = torch.randint(-1, 3, (count,), generator=generator).to(torch.int32)
    token = torch.randint(0, 4, (count,), generator=generator).to(torch.int32)
    value = torch.randn(count, generator=generator)
    logits = normal_logits(1, 3, 5)
    wanted, total = logits.clone(), torch.full_like(logits, -0.0)
    for at, column, change in zip(row.tolist(), token.tolist(), value, strict=True):
        if at >= 0:
            total[at, column] += change
    adjust_logits(logits, row, token, value)
    assert torch.equal(logits, wanted + total)

"""Dispatch and combine of backend 'cuda' between simulated ranks; see tests/support/moe_ranks.py."""

from __future__ import annotations

import pytest
import torch
from support.moe_ranks import CASES, Array, Kernels

from tandem.backends.cuda import activations, scales
from tandem.backends.cuda.kernels.moe_combine import moe_combine
from tandem.backends.cuda.kernels.moe_dispatch import moe_dispatch


def pack(scale: Array) -> torch.Tensor:
    """In tiles of 128 rows and 4 groups; scale bytes of rows that fill up the last tile are NaN."""
    rows, groups = scale.shape
    packed = torch.full((scales.packed_size(rows, groups),), 0xFF, dtype=torch.uint8)
    for row in range(rows):
        for group in range(-(-groups // 4) * 4):
            value = scale[row, group] if group < groups else 127
            tile = (row // 128) * -(-groups // 4) + group // 4
            packed[tile * 512 + (row % 32) * 16 + (row % 128) // 32 * 4 + group % 4] = int(value)
    return packed


KERNELS = Kernels(moe_dispatch, moe_combine, activations.LAYOUT, pack, activations.to_canonical)


@pytest.mark.parametrize("case", CASES)
def test_between_ranks(case: str) -> None:
    CASES[case](KERNELS)

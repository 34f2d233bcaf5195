"""Dispatch and combine of backend 'ascend' between simulated ranks; see tests/support/moe_ranks.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.moe_ranks import CASES, Array, Kernels

from tandem.backends.ascend import activations
from tandem.backends.ascend.kernels.moe_combine import moe_combine
from tandem.backends.ascend.kernels.moe_dispatch import moe_dispatch
from tandem.contract.backend import Backend


def pack(scale: Array) -> torch.Tensor:
    """Row-major, an odd number of groups filled up with the scale one."""
    return torch.from_numpy(np.pad(scale, ((0, 0), (0, scale.shape[1] % 2)), constant_values=127))


KERNELS = Kernels(moe_dispatch, moe_combine, activations.LAYOUT, pack, activations.to_canonical)


@pytest.mark.parametrize("case", CASES)
def test_between_ranks(ascend: Backend, case: str) -> None:
    CASES[case](KERNELS)

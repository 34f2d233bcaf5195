"""`topk_index` at the official size, 512 of 65,536 columns, and where it is asked for more than a core can merge."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tandem.backends.ascend.kernels.topk_index import topk_index
from tandem.contract.backend import Backend
from tandem.errors import LayoutError

COLUMNS, CHOSEN = 65_536, 512
Array = npt.NDArray[np.float32]


def best(row: Array, k: int) -> list[int]:
    """By (score descending, index ascending) of what is neither NaN nor -inf; in ascending order, -1 at the end."""
    order = np.argsort(-row, kind="stable")  # NaN comes last
    found = sorted(int(i) for i in order[:k] if row[i] > -np.inf)
    return found + [-1] * (k - len(found))


def scores() -> dict[str, Array]:
    """Rows whose best lie all over them, in ties across tiles, in one tile, at the edges, and hardly anywhere."""
    rng = np.random.default_rng(5)
    plain = rng.normal(size=COLUMNS).astype(np.float32)
    few = np.full(COLUMNS, -np.inf, np.float32)
    few[[0, 31, 32, 16_383, 16_384, COLUMNS - 1]] = 1.0, -3.0, np.inf, 0.0, -0.0, 2.0
    gaps = plain.copy()
    gaps[rng.random(COLUMNS) < 0.5] = np.nan
    gaps[:4000] = -np.inf
    return {
        "plain": plain,
        "ties": np.round(2 * plain),
        "zeros of both signs": np.where(np.arange(COLUMNS) % 3 == 0, -0.0, 0.0).astype(np.float32),
        "in one tile": np.where(np.arange(COLUMNS) // 700 == 60, plain + 100, plain),
        "at the end": np.arange(COLUMNS, dtype=np.float32),
        "few": few,
        "gaps": gaps,
        "nothing": np.full(COLUMNS, np.nan, np.float32),
    }


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
@pytest.mark.parametrize("rows", (1, 8))
def test_official_size(ascend: Backend, dtype: torch.dtype, rows: int) -> None:
    """One row is cut for all cores, many rows only where UB asks for it; the choice is the same."""
    held = torch.from_numpy(np.stack(list(scores().values()))).to(dtype)
    wanted = [best(row, CHOSEN) for row in held.to(torch.float32).numpy()]
    found = [topk_index(part, CHOSEN) for part in held.split(rows)]
    assert torch.cat(found).tolist() == wanted


def test_more_than_can_be_merged(ascend: Backend) -> None:
    with pytest.raises(LayoutError, match="more columns of a row than a core can merge"):
        topk_index(torch.zeros((1, COLUMNS)), 30_000)

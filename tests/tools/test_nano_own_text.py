"""Rows of the model's own text in the training of the draft module."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tools.train_nano.draft import DraftRecipe, OwnRows

LENGTH = 48
RECIPE = DraftRecipe(length=LENGTH)


def test_own_text_is_met_once_an_epoch(tmp_path: Path) -> None:
    rows = torch.arange(6 * (LENGTH + 5), dtype=torch.int32).view(6, LENGTH + 5)
    save_file({"text": rows}, tmp_path / "continuations.safetensors")
    own = OwnRows(tmp_path, 2, RECIPE)
    for epoch in range(2):
        met = torch.cat([own.batch(3 * epoch + step)[0] for step in range(3)])
        assert sorted(met[:, 0].tolist()) == rows[:, 0].tolist()
        assert torch.equal(met[0], rows[met[0, 0] // (LENGTH + 5), : LENGTH + 1])
    tokens, share = own.batch(1)
    assert torch.equal(tokens, own.batch(1)[0]) and share.shape == (2, LENGTH) and share.min() == 1.0


def test_own_text_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="tools.train_nano.continuations"):
        OwnRows(tmp_path, 1, RECIPE)
    assert OwnRows(tmp_path, 0, RECIPE).rows == 0
    save_file({"text": torch.zeros((2, LENGTH), dtype=torch.int32)}, tmp_path / "continuations.safetensors")
    with pytest.raises(SystemExit, match=f"{LENGTH + 1} are needed"):
        OwnRows(tmp_path, 1, RECIPE)

"""Rows that the draft module learns from, and the backbone's view of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.nano_small import SMALL, WINDOW, write_small_data

from tools.train_nano.dataset import load_dataset
from tools.train_nano.draft import DraftRecipe, DraftTrainer
from tools.train_nano.fakequant import STORED
from tools.train_nano.graph import NanoGraph, backbone_names
from tools.train_nano.lessons import Lessons, book_rows, observe, own_rows
from tools.train_nano.parameters import initial_parameters
from tools.train_nano.settings import nano_config
from tools.train_nano.state import save_state

Tensor = torch.Tensor
LENGTH = WINDOW


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    write_small_data(directory)
    return directory


@pytest.fixture(scope="module")
def nano(data: Path) -> NanoGraph:
    return NanoGraph(nano_config(data / "tokenizer.json", SMALL), data / "tokenizer.json", STORED)


@pytest.fixture(scope="module")
def weights(nano: NanoGraph) -> dict[str, Tensor]:
    return nano.stored(initial_parameters(nano.config, 0))


def rows_of(data: Path, count: int) -> tuple[Tensor, Tensor]:
    return book_rows(load_dataset(data), count, LENGTH, 0.5, 0)


def test_lessons_are_what_the_backbone_makes_of_the_rows(
    data: Path, nano: NanoGraph, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    """Kept as bf16 without loss: a stored model's activations are bf16 values."""
    tokens, share = rows_of(data, 6)
    lessons = Lessons(tmp_path / "lessons.safetensors", nano, weights, (tokens, share), seed=0)
    for epoch in range(2):
        met = [lessons.batch(3 * epoch + step, 2) for step in range(3)]
        assert sorted(torch.cat([part.tokens for part in met]).tolist()) == sorted(tokens.tolist())
        for part in met:
            wanted = observe(nano, weights, part.tokens, part.share)
            assert torch.equal(part.final, wanted.final)
            assert all(torch.equal(part.taps[layer], tap) for layer, tap in wanted.taps.items())
    at = [tokens.tolist().index(row) for row in met[0].tokens.tolist()]
    assert torch.equal(met[0].share, share[at])


def test_lessons_of_other_rows_are_refused(
    data: Path, nano: NanoGraph, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    tokens, share = rows_of(data, 3)
    path = tmp_path / "lessons.safetensors"
    Lessons(path, nano, weights, (tokens, share), seed=0)
    with pytest.raises(SystemExit, match="holds other rows"):
        Lessons(path, nano, weights, (tokens.flip(0), share.flip(0)), seed=0)


def test_own_text_comes_first_and_counts_whole(data: Path, nano: NanoGraph, tmp_path: Path) -> None:
    own = torch.randint(3, 200, (4, LENGTH + 5), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    for name in ("tokenizer.json", "train.safetensors", "valid.safetensors", "test.safetensors", "meta.json"):
        (tmp_path / name).write_bytes((data / name).read_bytes())
    save_file({"text": own}, tmp_path / "continuations.safetensors")
    start = initial_parameters(nano.config, 0)
    backbone = {name: start[name] for name in backbone_names(nano.config)}
    save_state(tmp_path / "run" / "state.safetensors", 0, backbone, {})
    recipe = DraftRecipe(steps=1, batch=2, length=LENGTH, book_rows=4, text=SMALL)
    trainer = DraftTrainer(recipe, tmp_path, tmp_path / "run", tmp_path / "draft")
    tokens, share = trainer.rows(tmp_path)
    assert tokens.shape == (8, LENGTH + 1) and torch.equal(tokens[:4], own[:, : LENGTH + 1].long())
    assert share[:4].min() == 1.0 and share[4:].min() == 0.0


def test_own_text_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="tools.train_nano.continuations"):
        own_rows(tmp_path, LENGTH)
    save_file({"text": torch.zeros((2, LENGTH), dtype=torch.int32)}, tmp_path / "continuations.safetensors")
    with pytest.raises(SystemExit, match=f"{LENGTH + 1} are needed"):
        own_rows(tmp_path, LENGTH)

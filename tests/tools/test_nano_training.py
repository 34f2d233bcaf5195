"""Training: losses, phases, balancing, the grid, resuming, and a short run from data to a checkpoint that loads."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path

import pytest
import torch

from tandem.checkpoint.reader import Checkpoint
from tandem.checkpoint.tiny import make_tiny
from tandem.model.config import TextConfig
from tools.train_nano.corpus import Chapter
from tools.train_nano.dataset import write_dataset
from tools.train_nano.evaluate import documents, windows
from tools.train_nano.export import export
from tools.train_nano.graph import Observations
from tools.train_nano.losses import alignment_loss
from tools.train_nano.optimise import balance, pull_to_grid, schedule
from tools.train_nano.parameters import initial_parameters, parameter_shapes, stored_value
from tools.train_nano.plan import Phases, phase
from tools.train_nano.read_back import read_parameters
from tools.train_nano.state import read_log
from tools.train_nano.train import Recipe, Trainer

Tensor = torch.Tensor
SMALL = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_lora_rank": 32,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "engram_vocab_size": 101,
    "dspark_markov_rank": 32,
}
RECIPE = Recipe(steps=24, batch=2, length=64, rate=4e-3, text=SMALL)


def chapters() -> list[Chapter]:
    """Sentences with rules to be learnt: what somebody saw follows from the name."""
    rng = random.Random(1)
    saw = {"Anna": "river", "Boaz": "garden", "Caleb": "mountain", "Dinah": "village"}
    places = "road lamp gate tree house field stone vine".split()

    def verse() -> str:
        name, (one, two) = rng.choice(list(saw)), rng.sample(places, 2)
        return f"The {one} was near the {two} when {name} saw the {saw[name]}, and it was good."

    last = [f"{name} went home to the lamp and the stone." for name in saw]
    return [Chapter(1, number, (*(verse() for _ in range(11)), rng.choice(last))) for number in range(1, 51)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    write_dataset(chapters(), directory, 60, 4)
    return directory


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    Trainer(RECIPE, data, out).run(RECIPE.steps, report_every=12)
    return out


def test_a_short_run_learns(run: Path) -> None:
    log = read_log(run / "log.jsonl")
    assert [line["step"] for line in log] == list(range(RECIPE.steps))
    assert abs(log[0]["loss"] - math.log(512)) < 1.0  # nothing known: about the logarithm of the vocabulary
    assert sum(line["loss"] for line in log[-4:]) / 4 < log[0]["loss"] - 1.5
    assert log[-1]["align"] < log[0]["align"]
    assert "valid_bits_per_byte" in log[11] and "valid_bits_per_byte" in log[23]


def test_a_resumed_run_is_the_uninterrupted_one(run: Path, data: Path, tmp_path: Path) -> None:
    Trainer(RECIPE, data, tmp_path).run(7, report_every=7)
    resumed = Trainer(RECIPE, data, tmp_path)
    assert resumed.step == 7
    resumed.run(RECIPE.steps, report_every=12)
    whole = Trainer(RECIPE, data, run).parameters
    assert all(torch.equal(value, whole[name]) for name, value in resumed.parameters.items())
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in read_log(tmp_path / "log.jsonl")]
    expected = [{k: v for k, v in line.items() if k != "seconds"} for line in read_log(run / "log.jsonl")]
    for line in (*lines, *expected):
        line.pop("valid_bits_per_byte", None)  # reported at other steps
    assert lines == expected


def test_another_recipe_does_not_continue_a_run(run: Path, data: Path) -> None:
    with pytest.raises(SystemExit, match="holds another recipe"):
        Trainer(dataclasses.replace(RECIPE, seed=1), data, run)
    assert json.loads((run / "recipe.json").read_text())["seed"] == 0


def test_the_trained_weights_are_the_stored_ones(run: Path, data: Path, tmp_path: Path) -> None:
    trainer = Trainer(RECIPE, data, run)
    everything = initial_parameters(trainer.config, 0) | trainer.parameters
    export(trainer.config, everything, data / "tokenizer.json", tmp_path)
    with Checkpoint.open(tmp_path) as source:
        source.validate()
    config, read = read_parameters(tmp_path)
    assert config == trainer.config
    dtypes = {name: dtype for name, (_, dtype) in parameter_shapes(config).items()}
    for name, value in trainer.parameters.items():
        assert torch.equal(read[name], value), name  # the pull has put them on the grid
    for name, value in everything.items():
        assert torch.equal(read[name], stored_value(name, value, dtypes[name])), name


def test_every_phase_is_reached_in_order() -> None:
    course = [phase(step, 100, Phases(0.3, 0.4, 0.6, 0.8, 0.9)) for step in range(100)]
    assert [course[s].precision.weights for s in (29, 30)] == [False, True]
    assert [course[s].sparse for s in (39, 40)] == [False, True]
    assert [course[s].precision.activations for s in (59, 60)] == [False, True]
    assert [course[s].long for s in (79, 80)] == [False, True]
    assert course[90].pull == 0.0 < course[91].pull < course[99].pull < 1.0


def test_the_rate_rises_and_falls_to_zero() -> None:
    assert schedule(0, 100, 10) == 0.1 and schedule(9, 100, 10) == 1.0
    assert schedule(55, 100, 10) == pytest.approx(0.5)
    assert schedule(100, 100, 10) == pytest.approx(0.0)


def test_biases_move_against_the_load() -> None:
    parameters = {"layers.3.ffn.gate.bias": torch.tensor([0.0, 1.0, 2.0])}
    balance(parameters, Observations(loads={3: torch.tensor([9, 6, 3])}), 0.25)
    assert parameters["layers.3.ffn.gate.bias"].tolist() == [-0.25, 1.0, 2.25]


def test_the_pull_goes_the_asked_part_of_the_way() -> None:
    value = torch.full((32, 32), 1.06)  # block scale 2^-8: fp8 values near 1.06 are 1 and 1.125
    parameters = {"layers.0.attn.wkv": value.clone()}
    pull_to_grid(parameters, {"layers.0.attn.wkv": "F8_E4M3"}, 0.25)
    torch.testing.assert_close(parameters["layers.0.attn.wkv"], torch.full((32, 32), 1.06 + 0.25 * (1.0 - 1.06)))
    pull_to_grid(parameters, {"layers.0.attn.wkv": "F8_E4M3"}, 1.0)
    assert torch.equal(parameters["layers.0.attn.wkv"], torch.ones(32, 32))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextConfig:
    return make_tiny(tmp_path_factory.mktemp("tiny"), 0).text


def test_alignment_is_least_where_the_indexer_looks_where_attention_looks(text: TextConfig) -> None:
    """Layer 1 serves layers 1 and 2: the target is their mean, and entropy is the floor."""
    masses = {1: torch.tensor([[[0.6, 0.4, 0.0]]]), 2: torch.tensor([[[0.2, 0.4, 0.4]]])}
    target = torch.tensor([[[0.4, 0.4, 0.2]]])

    def loss(scores: Tensor) -> float:
        return float(alignment_loss(Observations(scores={1: scores}, masses=masses), text))

    entropy = -float((target * target.log()).sum())
    assert loss(target.log()) == pytest.approx(entropy, rel=1e-5)
    assert loss(target.log() + 3.0) == pytest.approx(entropy, rel=1e-5)
    assert loss(torch.zeros(1, 1, 3)) == pytest.approx(math.log(3), rel=1e-5)


def test_the_pool_learns_what_all_later_layers_look_at(text: TextConfig) -> None:
    """Blocks of 8: layer 4's own mass is in block 0, that of layers 6 and 7 in block 1."""
    early, late = torch.zeros(1, 1, 16), torch.zeros(1, 1, 16)
    early[0, 0, 2], late[0, 0, 11] = 1.0, 1.0
    masses = {4: early, 5: early, 6: late, 7: late}
    scores = torch.zeros(1, 1, 16)
    scores[0, 0, 2] = 2.0
    got = float(alignment_loss(Observations(scores={4: scores}, masses=masses), text))
    own = math.log(math.exp(2.0) + 15) - 2.0
    pool = math.log(math.exp(2.0) + 1.0) - 0.5 * 2.0  # half the mass lies in each block
    assert got == pytest.approx((own + pool) / 2, rel=1e-5)


def test_every_token_is_counted_once() -> None:
    stream = torch.tensor([0, 5, 6, 7, 8, 9, 10, 1, 0, 4, 1])
    assert [len(document) for document in documents(stream)] == [8, 3]
    tokens, counted = windows(stream, 4)
    assert len(tokens) % 8 == 0
    targets = tokens[:, 1:][counted]
    assert targets.tolist() == [5, 6, 7, 8, 9, 10, 1, 4, 1]
    assert bool((tokens[counted.any(-1)][:, 0] == 0).all())

"""Train the backbone: ``python -m tools.train_nano.train --out build/nano/run``.  Stopped, it resumes where it was."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from tandem.model.config import ModelConfig
from tools.train_nano.dataset import DEFAULT_DIR, Batches, Dataset, load_dataset
from tools.train_nano.evaluate import stream_bits
from tools.train_nano.fuse import enable_fusion
from tools.train_nano.graph import NanoGraph, Observations, backbone_names
from tools.train_nano.losses import alignment_loss, next_token_loss
from tools.train_nano.optimise import Optimiser, balance, pull_to_grid, schedule
from tools.train_nano.parameters import initial_parameters
from tools.train_nano.plan import Phases, phase
from tools.train_nano.settings import nano_config
from tools.train_nano.state import Log, keep_recipe, load_state, save_state

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides a run, besides the data.

    Args:
        steps: optimiser steps.
        batch: rows of a step; half as many in the long phase.
        length: predicted tokens of a row; twice as many in the long phase.
        rate: peak learning rate.
        decay: weight decay.
        dropout: share of each sub-layer's output that is dropped.
        align: weight of the indexer's loss; it moves only the indexer.
        balance: step of the router biases.
        chat_share: share of rows with conversations.
        seed: of weights, batches and dropout.
        text: fields of ``text_config`` that differ from the shipped model.
    """

    steps: int = 2000
    batch: int = 8
    length: int = 256
    rate: float = 3e-3
    decay: float = 0.1
    dropout: float = 0.1
    align: float = 0.2
    balance: float = 2e-2
    chat_share: float = 0.12
    seed: int = 0
    text: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    phases: Phases = Phases()


class Trainer:
    """A run that can be continued.

    Args:
        data: directory of `tools.train_nano.dataset`.
        out: directory of the run: ``state.safetensors``, ``log.jsonl``, ``recipe.json``.
    """

    def __init__(self, recipe: Recipe, data: Path, out: Path) -> None:
        self.recipe, self.out = recipe, out
        self.tokenizer_json = data / "tokenizer.json"
        self.dataset: Dataset = load_dataset(data)
        self.config: ModelConfig = nano_config(self.tokenizer_json, recipe.text)
        start = initial_parameters(self.config, recipe.seed)
        self.parameters = {name: start[name] for name in backbone_names(self.config)}
        trained = {n: p.requires_grad_(True) for n, p in self.parameters.items() if not n.endswith("gate.bias")}
        self.optimiser = Optimiser(trained, recipe.rate, recipe.decay)
        self.step = 0
        keep_recipe(out, dataclasses.asdict(recipe))
        if (out / "state.safetensors").exists():
            self._resume()
        self.log = Log(out / "log.jsonl", self.step)

    def _resume(self) -> None:
        self.step, parameters, moments = load_state(self.out / "state.safetensors")
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(parameters[name])
        self.optimiser.load(moments)

    def save(self) -> None:
        """Write the state."""
        self._save_to(self.out / "state.safetensors")

    def _save_to(self, path: Path) -> None:
        save_state(path, self.step, self.parameters, self.optimiser.state())

    def _pull_begins(self) -> bool:
        """Whether the next step is the first that draws weights to the grid; reports compare with the state before."""
        steps, phases = self.recipe.steps, self.recipe.phases
        return phase(self.step, steps, phases).pull > 0.0 == phase(self.step - 1, steps, phases).pull

    def run(self, until: int, report_every: int = 200) -> None:
        """Train to a step, with a validation and a saved state every `report_every` steps and at the end."""
        bar = tqdm(total=until, initial=self.step, desc="train", unit="step", disable=None)
        while self.step < until:
            if self._pull_begins():
                self._save_to(self.out / "before_pull" / "state.safetensors")
            started = time.perf_counter()
            values = self.advance()
            seconds = time.perf_counter() - started
            bar.update(1)
            bar.set_postfix(loss=f"{values['loss']:.3f}")
            if self.step % report_every == 0 or self.step == until:
                values |= self.validate()
                self.save()
            self.log.write(step=self.step - 1, seconds=round(seconds, 3), **values)
        bar.close()

    def advance(self) -> dict[str, float]:
        """One optimiser step."""
        recipe, now = self.recipe, phase(self.step, self.recipe.steps, self.recipe.phases)
        torch.manual_seed(recipe.seed * 1_000_003 + self.step)
        tokens, share = self._batches(now.long).batch(self.step)
        graph = NanoGraph(self.config, self.tokenizer_json, now.precision, now.sparse, recipe.dropout)
        weights = graph.stored(self.parameters)
        hidden, seen = graph.hidden(weights, tokens[:, :-1])
        loss = next_token_loss(graph, weights, hidden, tokens[:, 1:], share)
        align = alignment_loss(seen, self.config.text)
        (loss + recipe.align * align).backward()
        part = schedule(self.step, recipe.steps)
        norm = self.optimiser.step(part)
        balance(self.parameters, seen, recipe.balance * max(part, 0.05))
        if now.pull > 0.0:
            pull_to_grid(self.parameters, graph.dtypes, now.pull)
        self.step += 1
        if self.step == recipe.steps:
            pull_to_grid(self.parameters, graph.dtypes, 1.0)
        return {"loss": loss.item(), "align": align.item(), "norm": norm, "imbalance": imbalance(seen)}

    def _batches(self, long: bool) -> Batches:
        recipe = self.recipe
        batch, length = (recipe.batch // 2, recipe.length * 2) if long else (recipe.batch, recipe.length)
        return Batches(self.dataset, batch, length, recipe.seed, recipe.chat_share)

    def validate(self) -> dict[str, float]:
        """Bits per byte of the validation stream, in the precision and sparsity of the present phase."""
        now = phase(self.step - 1, self.recipe.steps, self.recipe.phases)
        graph = NanoGraph(self.config, self.tokenizer_json, dataclasses.replace(now.precision, fast=False), now.sparse)
        bits = stream_bits(graph, self.parameters, self.dataset.valid, self.recipe.length)
        return {"valid_bits_per_byte": bits / self.dataset.valid_bytes}


def imbalance(seen: Observations) -> float:
    """Largest load of an expert relative to the mean, the worst layer."""
    return max(float(load.max() / load.float().mean()) for load in seen.loads.values())


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Train the small model's backbone.")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="directory of tools.train_nano.dataset")
    parser.add_argument("--out", type=Path, default=Path("build/nano/run"), help="directory of the run")
    parser.add_argument("--steps", type=int, default=Recipe().steps, help="optimiser steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and dropout (%(default)s)")
    parser.add_argument("--compile", action="store_true", help="compile elementwise chains: a minute more, then faster")
    arguments = parser.parse_args()
    if arguments.compile:
        enable_fusion()
    trainer = Trainer(Recipe(steps=arguments.steps, seed=arguments.seed), arguments.data, arguments.out)
    trainer.run(arguments.steps)


if __name__ == "__main__":
    main()

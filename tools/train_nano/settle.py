"""Last training phase: the quantised and the unquantised form learn to say the same.

``python -m tools.train_nano.settle --run build/nano/run --out build/nano/settled``

Choices that are nearly tied, of experts and of entries, fall either way under rounding.  Here both forms of the model
learn the distributions that the trained model has without quantisation, so that such choices come to matter less.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from tandem.model.config import ModelConfig
from tools.train_nano.dataset import DEFAULT_DIR, Batches, load_dataset
from tools.train_nano.fakequant import Precision
from tools.train_nano.fuse import enable_fusion
from tools.train_nano.graph import NanoGraph
from tools.train_nano.losses import alignment_loss
from tools.train_nano.optimise import Optimiser, balance, pull_to_grid, schedule
from tools.train_nano.settings import nano_config
from tools.train_nano.state import Log, load_state, save_state

Tensor = torch.Tensor

_FULL = Precision(False, False, fast=True)
_STORED = Precision(True, True, fast=True)


@dataclass(frozen=True, slots=True)
class SettleRecipe:
    """Everything that decides the phase, besides the data and the run.

    Args:
        steps: optimiser steps.
        batch: rows of a step.
        length: positions of a row.
        rate: peak learning rate.
        align: weight of the indexer's loss.
        balance: step of the router biases.
        pull: share of the steps before weights are drawn to the grid.
        chat_share: share of rows with conversations.
        seed: of the batches.
    """

    steps: int = 150
    batch: int = 8
    length: int = 256
    rate: float = 1e-3
    align: float = 0.2
    balance: float = 1e-3
    pull: float = 0.5
    chat_share: float = 0.12
    seed: int = 1


class Settling:
    """The phase, from a trained state to a settled one.

    Args:
        data: directory of `tools.train_nano.dataset`.
        run: directory of `tools.train_nano.train`.
        out: directory to write ``state.safetensors`` and ``log.jsonl`` to.
    """

    def __init__(self, recipe: SettleRecipe, data: Path, run: Path, out: Path) -> None:
        self.recipe, self.out = recipe, out
        tokenizer_json = data / "tokenizer.json"
        self.config: ModelConfig = nano_config(tokenizer_json)
        self.batches = Batches(load_dataset(data), recipe.batch, recipe.length, recipe.seed, recipe.chat_share)
        _, self.parameters, _ = load_state(run / "state.safetensors")
        self.teacher = {name: value.clone() for name, value in self.parameters.items()}
        trained = {n: p.requires_grad_(True) for n, p in self.parameters.items() if not n.endswith("gate.bias")}
        self.optimiser = Optimiser(trained, recipe.rate, 0.0)
        self.full = NanoGraph(self.config, tokenizer_json, _FULL)
        self.stored = NanoGraph(self.config, tokenizer_json, _STORED)
        self.log = Log(out / "log.jsonl", 0)

    def run(self) -> None:
        """All steps; the state is written at the end."""
        for step in tqdm(range(self.recipe.steps), desc="settle", unit="step", disable=None):
            started = time.perf_counter()
            values = self.advance(step)
            self.log.write(step=step, seconds=round(time.perf_counter() - started, 3), **values)
        pull_to_grid(self.parameters, self.stored.dtypes, 1.0)
        save_state(self.out / "state.safetensors", self.recipe.steps, self.parameters, self.optimiser.state())

    def advance(self, step: int) -> dict[str, float]:
        """One step: both forms move towards what the trained model says unquantised."""
        recipe = self.recipe
        tokens, share = self.batches.batch(step)
        inputs, share = tokens[:, :-1], share.flatten()
        with torch.no_grad():
            hidden, _ = self.full.hidden(self.teacher, inputs)
            target = torch.softmax(self.full.logits(self.teacher, hidden), -1).flatten(0, 1)
        divergences = []
        for graph in (self.full, self.stored):
            weights = graph.stored(self.parameters)
            hidden, seen = graph.hidden(weights, inputs)
            loss = divergence(target, graph.logits(weights, hidden).flatten(0, 1), share)
            (loss + recipe.align * alignment_loss(seen, self.config.text)).backward()
            divergences.append(loss.item())
        part = schedule(step, recipe.steps, warmup=10)
        norm = self.optimiser.step(part)
        balance(self.parameters, seen, recipe.balance * part)
        drawn = (step / recipe.steps - recipe.pull) / (1.0 - recipe.pull)
        if drawn > 0.0:
            pull_to_grid(self.parameters, self.stored.dtypes, 0.3 * drawn)
        return {"full": divergences[0], "stored": divergences[1], "norm": norm}


def divergence(target: Tensor, logits: Tensor, share: Tensor) -> Tensor:
    """Mean Kullback-Leibler divergence from target [N, V] in nats over rows weighted by share [N]."""
    log_p = torch.log_softmax(logits, -1)
    rows = (target * (target.clamp_min(1e-30).log() - log_p)).sum(-1)
    return (rows * share).sum() / share.sum().clamp_min(1.0)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Let both forms of the trained model agree.")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="of tools.train_nano.dataset")
    parser.add_argument("--run", type=Path, default=Path("build/nano/run"), help="of tools.train_nano.train")
    parser.add_argument("--out", type=Path, default=Path("build/nano/settled"), help="directory to write to")
    parser.add_argument("--steps", type=int, default=SettleRecipe().steps, help="optimiser steps (%(default)s)")
    parser.add_argument("--compile", action="store_true", help="compile elementwise chains: faster after a minute")
    arguments = parser.parse_args()
    if arguments.compile:
        enable_fusion()
    Settling(SettleRecipe(steps=arguments.steps), arguments.data, arguments.run, arguments.out).run()


if __name__ == "__main__":
    main()

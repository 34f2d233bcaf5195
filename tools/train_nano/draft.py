"""Train the draft module after the backbone: ``python -m tools.train_nano.draft --out build/nano/draft``.

The backbone is frozen and has read all rows before (`tools.train_nano.lessons`).  Every step places anchors in some
of them and teaches the blocks after the anchors its distributions.  In the end the confidence, a logistic regression,
is fitted on text that the backbone has not learnt.  Stopped, it resumes where it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from tandem.model.config import ModelConfig
from tools.train_nano.continuations import TEMPERATURES
from tools.train_nano.dataset import DEFAULT_DIR, load_dataset
from tools.train_nano.draft_graph import DraftGraph, distribution, gather_rows
from tools.train_nano.evaluate import windows
from tools.train_nano.fakequant import STORED, round_bf16
from tools.train_nano.fuse import enable_fusion
from tools.train_nano.graph import NanoGraph, backbone_names
from tools.train_nano.lessons import Lesson, Lessons, book_rows, observe, own_rows
from tools.train_nano.optimise import Optimiser, pull_to_grid, schedule
from tools.train_nano.parameters import initial_parameters
from tools.train_nano.plan import Phases, phase
from tools.train_nano.settings import nano_config
from tools.train_nano.state import Log, keep_recipe, load_state, save_state

Tensor = torch.Tensor

_PHASES = Phases(weights=0.0, sparse=0.0, activations=0.0, long=1.0, pull=0.8)  # quantised from the start
_VALID_ROWS = 24
_NEWTON_STEPS = 12
_PRIOR = 10.0
_NOISE = 0.1


@dataclass(frozen=True, slots=True)
class DraftRecipe:
    """Everything that decides a run, besides the data and the backbone.

    Args:
        steps: optimiser steps.
        batch: rows of a step.
        length: positions of a row.
        stride: distance between the anchors of a row; where the first one stands is random.
        rate: peak learning rate, but for the Markov head.
        markov_rate: peak learning rate of the Markov head, whose rows are met rarely.
        decay: weight decay.
        discount: weight of a row of a block relative to the row before it.
        balance: step of the router biases.
        chat_share: share of these rows with conversations.
        own_text: learn from the text of the model itself, too.
        book_rows: rows of the book and of conversations.
        seed: of weights, batches and anchors.
        text: fields of ``text_config`` that differ from the shipped model.
    """

    steps: int = 4000
    batch: int = 8
    length: int = 256
    stride: int = 4
    rate: float = 4e-3
    markov_rate: float = 1e-2
    decay: float = 0.1
    discount: float = 0.8
    balance: float = 1e-2
    chat_share: float = 0.3
    own_text: bool = True
    book_rows: int = 768
    seed: int = 0
    text: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Blocks:
    """What the rows of blocks propose against what the backbone would say, [B, A, K].

    Args:
        loss: cross entropy with the backbone's distribution, nats.
        overlap: probability that a draft is accepted at the temperature asked for; no gradient.
        passed: probability that the text's own token is accepted as a draft; no gradient.
        features: what the confidence is a projection of [B, A, K, H + R]; no gradient.
        loads: stage -> rows of each expert.
    """

    loss: Tensor
    overlap: Tensor
    passed: Tensor
    features: Tensor
    loads: dict[int, Tensor]


def compare(
    graph: DraftGraph, weights: Mapping[str, Tensor], lesson: Lesson, anchors: Tensor, temperature: float = 1.0
) -> Blocks:
    """Blocks after anchors [B, A] in a lesson's rows, with the tokens themselves as Markov inputs.

    Args:
        weights: of backbone and draft module, from `NanoGraph.stored`.
        temperature: at which drafts and tokens are drawn; the loss is that of temperature 1.
    """
    rows = anchors.unsqueeze(-1) + torch.arange(graph.text.dspark_block_size)
    with torch.no_grad():
        backbone = graph.graph.logits(weights, gather_rows(lesson.final, rows))
        wanted = torch.softmax(backbone, dim=-1)
    context = graph.context(weights, lesson.taps)
    previous, said = (lesson.tokens.gather(1, (rows + ahead).flatten(1)).view(rows.shape) for ahead in (0, 1))
    hidden, loads = graph.block(weights, context, anchors, previous[..., 0])
    embedded, shift = graph.markov(weights, previous)
    log_p = torch.log_softmax(graph.base_logits(weights, hidden) + shift, dim=-1)
    with torch.no_grad():
        p, q = distribution(log_p, temperature), distribution(backbone, temperature)
        overlap = torch.minimum(p, q).sum(-1)
        ratio = (p / q.clamp_min(1e-30)).gather(-1, said.unsqueeze(-1)).squeeze(-1)
        features = torch.cat((hidden, embedded), dim=-1)
    return Blocks(-(wanted * log_p).sum(-1), overlap, ratio.clamp_max(1.0), features, loads)


def fit_logistic(features: Tensor, target: Tensor, weight: Tensor, prior: float) -> Tensor:
    """Projection w [R] that makes sigmoid(features @ w) the likeliest probabilities, by Newton's method.

    Args:
        features: [N, R].
        target: probabilities to predict [N].
        weight: of each row [N].
        prior: strength of a normal prior on w times the size of its feature, in rows.
    """
    x, y, share = features.double(), target.double(), weight.double()
    size = x.square().mean(0).sqrt().clamp_min(1e-6)
    x = x / size
    w = torch.zeros(x.shape[1], dtype=torch.float64)
    for _ in range(_NEWTON_STEPS):
        belief = torch.sigmoid(x @ w)
        gradient = x.t() @ (share * (belief - y)) + prior * w
        curvature = (x * (share * belief * (1.0 - belief)).unsqueeze(-1)).t() @ x
        w = w - torch.linalg.solve(curvature + prior * torch.eye(len(w), dtype=torch.float64), gradient)
    return (w / size).float()


class DraftTrainer:
    """A run that can be continued.

    Args:
        data: directory of `tools.train_nano.dataset`.
        run: directory of the backbone's run.
        out: directory of this run: ``state.safetensors``, ``log.jsonl``, ``recipe.json``.
    """

    def __init__(self, recipe: DraftRecipe, data: Path, run: Path, out: Path) -> None:
        self.recipe, self.data, self.out = recipe, data, out
        self.dataset = load_dataset(data)
        tokenizer_json = data / "tokenizer.json"
        self.config: ModelConfig = nano_config(tokenizer_json, recipe.text)
        self.graph = NanoGraph(self.config, tokenizer_json, phase(0, recipe.steps, _PHASES).precision)
        self.exact = NanoGraph(self.config, tokenizer_json, STORED)
        backbone = run / "state.safetensors"
        with torch.no_grad():
            self.backbone = self.graph.stored(load_state(backbone)[1])
        self._k = self.config.text.dspark_block_size
        self.last = f"mtp.{self.config.text.num_nextn_predict_layers - 1}."
        self.parameters = self._start()
        apart = ("gate.bias", "confidence_head.proj")
        trained = {n: p.requires_grad_(True) for n, p in self.parameters.items() if not n.endswith(apart)}
        markov = {name: trained.pop(name) for name in list(trained) if "markov_head" in name}
        self.optimisers = (
            Optimiser(trained, recipe.rate, recipe.decay),
            Optimiser(markov, recipe.markov_rate, recipe.decay),
        )
        self.step = 0
        digest = hashlib.sha256(backbone.read_bytes()).hexdigest()
        keep_recipe(out, dataclasses.asdict(recipe) | {"backbone_sha256": digest})
        if (out / "state.safetensors").exists():
            self._resume()
        self.lessons = Lessons(out / "lessons.safetensors", self.graph, self.backbone, self.rows(data), recipe.seed)
        self.log = Log(out / "log.jsonl", self.step)

    def rows(self, data: Path) -> tuple[Tensor, Tensor]:
        """Tokens [N, L + 1] and weights [N, L] of all rows: the model's own text first, then the book's."""
        recipe = self.recipe
        book = book_rows(self.dataset, recipe.book_rows, recipe.length, recipe.chat_share, recipe.seed)
        if not recipe.own_text:
            return book
        own = own_rows(data, recipe.length)
        return torch.cat((own, book[0])), torch.cat((torch.ones_like(own[:, 1:], dtype=torch.float32), book[1]))

    def _start(self) -> dict[str, Tensor]:
        """Start values: what the backbone knows already, and noise.

        The first stage is a copy of the backbone's first layer and the others of its last ones, with as many of
        their experts as a stage has.  Routers start anew: rows of a block are so alike at first that a learnt router
        sends them all to the same experts.  The context starts as the last tap.
        """
        names = set(backbone_names(self.config))
        start = initial_parameters(self.config, self.recipe.seed)
        own = {name: value for name, value in start.items() if name not in names}
        stages, hidden = self.config.text.num_nextn_predict_layers, self.config.text.hidden_size
        for name in own:
            _, number, rest = name.split(".", 2)
            layer = self.config.text.num_hidden_layers - stages + int(number) if number != "0" else 0
            source = self.backbone.get(f"layers.{layer}.{rest}")
            if source is not None and not name.endswith(("ffn.gate", "gate.bias")):
                own[name] = source[: len(own[name])].clone()
        own[self.last + "norm"] = self.backbone["norm"].clone()
        own["mtp.0.main_proj"] *= _NOISE
        own["mtp.0.main_proj"][:, -hidden:] += torch.eye(hidden)
        return own

    def _resume(self) -> None:
        self.step, parameters, moments = load_state(self.out / "state.safetensors")
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(parameters[name])
        for part in self.optimisers:
            part.load({key: value for key, value in moments.items() if key.partition("/")[2] in part.parameters})

    def save(self) -> None:
        """Write the state."""
        moments = {key: value for part in self.optimisers for key, value in part.state().items()}
        save_state(self.out / "state.safetensors", self.step, self.parameters, moments)

    def run(self, until: int, report_every: int = 100) -> None:
        """Train to a step, with a validation and a saved state every `report_every` steps and at the end."""
        bar = tqdm(total=until, initial=self.step, desc="draft", unit="step", disable=None)
        while self.step < until:
            started = time.perf_counter()
            values: dict[str, Any] = dict(self.advance())
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
        recipe, now = self.recipe, phase(self.step, self.recipe.steps, _PHASES)
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + self.step)
        lesson = self.lessons.batch(self.step, recipe.batch)
        anchors = self._anchors(recipe.batch, generator)
        weights = self.backbone | self.graph.stored(self.parameters)
        blocks = compare(DraftGraph(self.graph), weights, lesson, anchors)
        counted = self._counted(lesson.share, anchors)
        total = counted.sum().clamp_min(1.0)
        loss = (blocks.loss * counted).sum() / total
        loss.backward()
        part = schedule(self.step, recipe.steps)
        norm, _ = (optimiser.step(part) for optimiser in self.optimisers)
        self._balance(blocks.loads, recipe.balance * max(part, 0.05))
        if now.pull > 0.0:
            pull_to_grid(self.parameters, self.graph.dtypes, now.pull)
        self.step += 1
        if self.step == recipe.steps:
            pull_to_grid(self.parameters, self.graph.dtypes, 1.0)
            self.fit_confidence()
        overlap = float((blocks.overlap * counted).sum() / total)
        worst = max(float(load.max() / load.float().mean()) for load in blocks.loads.values())
        return {"loss": loss.item(), "overlap": overlap, "norm": norm, "imbalance": worst}

    def _anchors(self, rows: int, generator: torch.Generator) -> Tensor:
        """Positions [B, A]; a block needs a feature before it and targets for all of its rows."""
        recipe = self.recipe
        count = (recipe.length - self._k - recipe.stride) // recipe.stride + 1
        first = torch.randint(1, recipe.stride + 1, (rows, 1), generator=generator)
        return first + recipe.stride * torch.arange(count)

    def _counted(self, share: Tensor, anchors: Tensor) -> Tensor:
        """Weight [B, A, K] of the rows: none from the first on that proposes what is not to be learnt."""
        rows = anchors.unsqueeze(-1) + torch.arange(self._k)
        learnt = share.gather(1, rows.flatten(1)).view(rows.shape)
        return learnt.cumprod(-1) * self.recipe.discount ** torch.arange(self._k)

    def _balance(self, loads: Mapping[int, Tensor], rate: float) -> None:
        """Move each router bias towards even load."""
        for stage, load in loads.items():
            bias = self.parameters[f"mtp.{stage}.ffn.gate.bias"]
            bias += rate * torch.sign(load.float().mean() - load.float())

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """Loss and overlap by row of the blocks on part of the validation stream, in stored precision."""
        sums = torch.zeros(3, self._k)
        for blocks, counted in self._on_valid(_VALID_ROWS, stride=self._k):
            parts = (blocks.loss * counted, blocks.overlap * counted, counted)
            sums += torch.stack([part.sum((0, 1)) for part in parts])
        loss, overlap = sums[:2] / sums[2]
        return {"valid_loss": float(loss.mean()), "valid_overlap": overlap.tolist()}

    @torch.no_grad()
    def fit_confidence(self) -> None:
        """Fit the confidence to `Blocks.overlap`, on text that neither backbone nor draft module has learnt.

        That is text of the model itself, of all temperatures, where it was to be learnt, else the book's.  A row counts
        as much as it is likely that all drafts before it are accepted: only then its own is tested.
        """
        features, targets, shares = [], [], []
        for blocks, counted in self._on_own() if self.recipe.own_text else self._on_valid(None, stride=2):
            reached = torch.nn.functional.pad(blocks.passed[..., :-1].cumprod(-1), (1, 0), value=1.0)
            used = counted > 0.0
            features.append(blocks.features[used])
            targets.append(blocks.overlap[used])
            shares.append(reached[used])
        fitted = fit_logistic(torch.cat(features), torch.cat(targets), torch.cat(shares), _PRIOR)
        self.parameters[self.last + "confidence_head.proj"].copy_(round_bf16(fitted))

    def _on_own(self) -> Iterator[tuple[Blocks, Tensor]]:
        """Blocks of the model's own held-out text, each row at the temperature that it was drawn at."""
        weights = self.backbone | self.exact.stored(self.parameters)
        rows = own_rows(self.data, self.recipe.length, "held_out")
        for place, temperature in enumerate(TEMPERATURES):
            for tokens in rows[place :: len(TEMPERATURES)].split(8):
                anchors = torch.arange(1, self.recipe.length - self._k + 1, 2).expand(len(tokens), -1)
                lesson = observe(self.exact, weights, tokens, torch.ones_like(tokens[:, 1:], dtype=torch.float32))
                blocks = compare(DraftGraph(self.exact), weights, lesson, anchors, temperature)
                yield blocks, torch.ones_like(blocks.overlap)

    def _on_valid(self, rows: int | None, stride: int) -> Iterator[tuple[Blocks, Tensor]]:
        """Blocks of the first rows of the validation stream, 8 at a time, and which of them count [B, A, K]."""
        weights = self.backbone | self.exact.stored(self.parameters)
        both = windows(self.dataset.valid, self.recipe.length)
        for tokens, targets in zip(*(part[:rows].split(8) for part in both), strict=True):
            anchors = torch.arange(1, self.recipe.length - self._k + 1, stride).expand(len(tokens), -1)
            places = anchors.unsqueeze(-1) + torch.arange(self._k)
            counted = targets.float().gather(1, places.flatten(1)).view(places.shape).cumprod(-1)
            lesson = observe(self.exact, weights, tokens, targets.float())
            yield compare(DraftGraph(self.exact), weights, lesson, anchors), counted


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Train the small model's draft module.")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="directory of tools.train_nano.dataset")
    parser.add_argument("--run", type=Path, default=Path("build/nano/run"), help="of tools.train_nano.train")
    parser.add_argument("--out", type=Path, default=Path("build/nano/draft"), help="directory of the run")
    parser.add_argument("--steps", type=int, default=DraftRecipe().steps, help="optimiser steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and anchors (%(default)s)")
    parser.add_argument("--compile", action="store_true", help="compile elementwise chains: a minute more, then faster")
    arguments = parser.parse_args()
    if arguments.compile:
        enable_fusion()
    recipe = DraftRecipe(steps=arguments.steps, seed=arguments.seed)
    DraftTrainer(recipe, arguments.data, arguments.run, arguments.out).run(arguments.steps)


if __name__ == "__main__":
    main()

"""Measure the draft module: ``python -m tools.train_nano.acceptance --run build/nano/run --draft build/nano/draft``.

Speculative decoding, step by step and exact, over held-out prompts: without an engine, in stored precision, the
whole prefix computed anew at every step.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from tools.train_nano.dataset import DEFAULT_DIR, load_dataset
from tools.train_nano.draft import fit_logistic
from tools.train_nano.draft_graph import DraftGraph, distribution, gather_rows
from tools.train_nano.evaluate import documents
from tools.train_nano.fakequant import STORED
from tools.train_nano.graph import NanoGraph
from tools.train_nano.settings import nano_config
from tools.train_nano.state import load_state
from tools.train_nano.tokenizer import EOS_TOKEN_ID, PAD_TOKEN_ID

Tensor = torch.Tensor

PROMPTS, PROMPT_LENGTH, NEW_TOKENS, BINS = 24, 32, 64, 10
# Temperature and whether the Markov head takes part.
SETTINGS = ((0.0, True), (0.0, False), (0.7, True), (0.7, False), (1.0, True))


def draw(p: Tensor, u: Tensor) -> Tensor:
    """Tokens from weights p [..., V], which need not sum to 1, by uniform numbers u [...] in [0, 1)."""
    cdf = p.double().cumsum(-1)
    beyond = (cdf <= (u.double() * cdf[..., -1]).unsqueeze(-1)).sum(-1)
    last = p.shape[-1] - 1 - (p > 0).flip(-1).to(torch.int8).argmax(-1)  # u * total may round up to the total
    return torch.minimum(beyond, last)


def verify(drafts: Tensor, p: Tensor, q: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Rejection sampling: the emitted tokens follow the target whatever the drafts' distributions are.

    Args:
        drafts: int64 [N, K], draft i drawn from p[:, i].
        p: distributions of the drafts [N, K, V].
        q: distributions of the target at the same places and after the last draft [N, K + 1, V].
        u: uniform numbers in [0, 1), [N, K + 1]: one to accept each draft, one to draw the last token.

    Returns:
        accepted [N], the drafts before the first rejection, and the token after them [N].
    """
    k = drafts.shape[1]
    of_draft = p.gather(-1, drafts.unsqueeze(-1)).squeeze(-1)
    of_target = q[:, :k].gather(-1, drafts.unsqueeze(-1)).squeeze(-1)
    accepted = (u[:, :k] * of_draft < of_target).long().cumprod(-1).sum(-1)
    proposed = torch.nn.functional.pad(p, (0, 0, 0, 1))  # after the last draft nothing was proposed
    at = accepted.view(-1, 1, 1).expand(-1, 1, q.shape[-1])
    residual = (q - proposed).clamp_min(0.0).gather(1, at).squeeze(1)
    return accepted, draw(residual, u[:, k])


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of all sequences, one after another: [S] and [S, K].

    Args:
        accepted: drafts accepted, int64 [S].
        reached: drafts that came to a test, those after a rejection or the end of the text did not; bool [S, K].
        belief: logit of the confidence of each draft, f32 [S, K].
    """

    accepted: Tensor
    reached: Tensor
    belief: Tensor

    def events(self) -> tuple[Tensor, Tensor]:
        """Logit of the confidence and outcome, f32 1 if accepted, of every draft that came to a test: [E] each."""
        taken = torch.arange(self.reached.shape[1]) < self.accepted.unsqueeze(-1)
        return self.belief[self.reached], taken[self.reached].float()


class Speculation:
    """Speculative decoding of a batch of prompts.

    Args:
        graph: in stored precision.
        weights: of backbone and draft module, from `NanoGraph.stored`.
        temperature: of target and drafts.
        markov: False leaves the Markov head's logits out.
    """

    def __init__(self, graph: DraftGraph, weights: Mapping[str, Tensor], temperature: float, markov: bool) -> None:
        self.graph, self.weights, self.temperature, self.markov = graph, weights, temperature, markov

    @torch.no_grad()
    def run(self, prompts: Tensor, new_tokens: int, seed: int) -> tuple[Steps, Tensor]:
        """Decode until every sequence has `new_tokens` more, or has ended.

        Args:
            prompts: int64 [N, T].

        Returns:
            the steps and the sequences, int64 [N, T + new_tokens], with anything behind the end of a text.
        """
        k, generator = self.graph.text.dspark_block_size, torch.Generator().manual_seed(seed)
        n, start = prompts.shape
        end = start + new_tokens
        tokens = torch.nn.functional.pad(prompts, (0, new_tokens + k), value=PAD_TOKEN_ID)
        anchor = torch.full((n,), start)  # position of the newest token, which the target has not read yet
        q, taps = self._read(tokens[:, :start], anchor.unsqueeze(-1) - 1)
        tokens[:, start] = draw(q[:, 0], torch.rand(n, generator=generator))
        live = torch.arange(n)
        steps = [Steps(anchor[:0], torch.zeros((0, k), dtype=torch.bool), torch.zeros((0, k)))]
        while True:
            going = (tokens[live, anchor] != EOS_TOKEN_ID) & (anchor < end - 1)
            live, anchor, taps = live[going], anchor[going], {layer: tap[going] for layer, tap in taps.items()}
            if not len(live):
                break
            context = self.graph.context(self.weights, taps)
            drafts, p, belief = self._draft(context, anchor, tokens[live, anchor], generator)
            places = anchor.unsqueeze(-1) + torch.arange(k + 1)
            tokens[live.unsqueeze(-1), places[:, 1:]] = drafts
            q, taps = self._read(tokens[live, : int(anchor.max()) + k + 1], places)
            accepted, token = verify(drafts, p, q, torch.rand((len(live), k + 1), generator=generator))
            length = _length(drafts)
            reached = torch.arange(k) < torch.minimum(accepted + 1, length).unsqueeze(-1)
            ended = (accepted >= length) & (drafts == EOS_TOKEN_ID).any(-1)
            accepted = torch.minimum(accepted, length)
            steps.append(Steps(accepted, reached, belief))
            anchor = anchor + accepted + 1
            tokens[live, anchor] = torch.where(ended, EOS_TOKEN_ID, token)
        columns = ([getattr(step, name) for step in steps] for name in ("accepted", "reached", "belief"))
        return Steps(*(torch.cat(column) for column in columns)), tokens[:, :end]

    def _read(self, tokens: Tensor, places: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """The target's distributions after places [N, P] and the taps of all positions."""
        nano = self.graph.graph
        final, seen = nano.hidden(self.weights, tokens)
        return distribution(nano.logits(self.weights, gather_rows(final, places)), self.temperature), seen.taps

    def _draft(
        self, context: list[Tensor], anchor: Tensor, token: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Drafts after the anchors [N], their distributions and logits of confidence: [N, K], [N, K, V], [N, K]."""
        graph, weights = self.graph, self.weights
        hidden, _ = graph.block(weights, context, anchor.unsqueeze(-1), token.unsqueeze(-1))
        hidden = hidden.squeeze(1)
        base = graph.base_logits(weights, hidden)
        drafts, distributions, beliefs = [], [], []
        for row in range(hidden.shape[1]):
            embedded, shift = graph.markov(weights, token)
            p = distribution(base[:, row] + shift if self.markov else base[:, row], self.temperature)
            beliefs.append(graph.confidence(weights, hidden[:, row], embedded))
            token = draw(p, torch.rand(len(token), generator=generator))
            drafts.append(token)
            distributions.append(p)
        return torch.stack(drafts, 1), torch.stack(distributions, 1), torch.stack(beliefs, 1)


def _length(drafts: Tensor) -> Tensor:
    """Drafts [N, K] up to and with the first end of text -> [N]."""
    ends = drafts == EOS_TOKEN_ID
    return torch.where(ends.any(-1), ends.int().argmax(-1) + 1, drafts.shape[1])


def reliability(confidence: Tensor, outcome: Tensor) -> list[dict[str, float]]:
    """Events [E] in bins of equal width of the confidence: each bin's events, mean confidence, share accepted."""
    number = (confidence * BINS).long().clamp_max(BINS - 1)
    bins = []
    for index in range(BINS):
        inside = number == index
        count = int(inside.sum())
        mean = float(confidence[inside].mean()) if count else 0.0
        share = float(outcome[inside].mean()) if count else 0.0
        bins.append({"low": index / BINS, "events": count, "confidence": mean, "accepted": share})
    return bins


def calibration_error(bins: list[dict[str, float]]) -> float:
    """Expected calibration error: |confidence - accepted|, averaged over the events."""
    total = sum(part["events"] for part in bins)
    return sum(part["events"] * abs(part["confidence"] - part["accepted"]) for part in bins) / total


def report(steps: Steps) -> dict[str, Any]:
    """What a run shows.

    ``accepted`` is the mean number of drafts per step; by position: ``survival``, the share of steps that accepted
    this draft, ``acceptance``, the same among drafts that came to a test, and their mean ``confidence``.
    ``confidence_temperature`` is the one that would make the outcomes likeliest, ``calibration_error_then`` what
    would be left with it.
    """
    k = steps.reached.shape[1]
    belief, outcome = steps.events()
    tests = steps.reached.sum(0).clamp_min(1)
    survival = (torch.arange(k) < steps.accepted.unsqueeze(-1)).float()
    bins = reliability(torch.sigmoid(belief), outcome)
    scale = float(fit_logistic(belief.unsqueeze(-1), outcome, torch.ones_like(outcome), 1.0))
    return {
        "steps": len(steps.accepted),
        "accepted": float(steps.accepted.float().mean()),
        "survival": survival.mean(0).tolist(),
        "acceptance": (survival.sum(0) / tests).tolist(),
        "confidence": ((torch.sigmoid(steps.belief) * steps.reached).sum(0) / tests).tolist(),
        "calibration_error": calibration_error(bins),
        "confidence_temperature": 1.0 / scale,
        "calibration_error_then": calibration_error(reliability(torch.sigmoid(belief * scale), outcome)),
        "bins": bins,
    }


def held_out_prompts(stream: Tensor, count: int, length: int) -> Tensor:
    """The first `length` tokens of the first `count` documents that have so many, int64 [N, length]."""
    return torch.stack([part[:length] for part in documents(stream) if len(part) > length][:count])


def measure(data: Path, run: Path, draft: Path, seed: int) -> list[dict[str, Any]]:
    """Reports for all of `SETTINGS` on prompts of the test documents."""
    tokenizer_json = data / "tokenizer.json"
    nano = NanoGraph(nano_config(tokenizer_json), tokenizer_json, STORED)
    with torch.no_grad():
        parameters = load_state(run / "state.safetensors")[1] | load_state(draft / "state.safetensors")[1]
        weights = nano.stored(parameters)
    prompts = held_out_prompts(load_dataset(data).test, PROMPTS, PROMPT_LENGTH)
    reports = []
    for temperature, markov in tqdm(SETTINGS, desc="acceptance", disable=None):
        steps, _ = Speculation(DraftGraph(nano), weights, temperature, markov).run(prompts, NEW_TOKENS, seed)
        reports.append({"temperature": temperature, "markov": markov} | report(steps))
    return reports


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Measure how many drafts of the small model are accepted.")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="directory of tools.train_nano.dataset")
    parser.add_argument("--run", type=Path, default=Path("build/nano/run"), help="of tools.train_nano.train")
    parser.add_argument("--draft", type=Path, default=Path("build/nano/draft"), help="of tools.train_nano.draft")
    parser.add_argument("--seed", type=int, default=0, help="of sampling (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, bins included")
    arguments = parser.parse_args()
    reports = measure(arguments.data, arguments.run, arguments.draft, arguments.seed)
    if arguments.json:
        print(json.dumps(reports))
        return
    for line in reports:
        name = f"T {line['temperature']}" + ("" if line["markov"] else ", no Markov head")
        print(f"{name}: {line['accepted']:.2f} drafts accepted per step of {line['steps']}")
        for key in ("survival", "acceptance", "confidence"):
            print(f"  {key:11}" + " ".join(f"{value:.2f}" for value in line[key]))
        then = f"{line['calibration_error_then']:.3f} with temperature {line['confidence_temperature']:.2f}"
        print(f"  calibration error {line['calibration_error']:.3f}, {then}")


if __name__ == "__main__":
    main()

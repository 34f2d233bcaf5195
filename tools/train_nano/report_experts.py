"""Who works: loads of the experts over the test stream, ``python -m tools.train_nano.report_experts``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from tandem.model.config import TextConfig
from tools.train_nano import graph as graph_module
from tools.train_nano.dataset import DEFAULT_DIR, load_dataset
from tools.train_nano.evaluate import windows
from tools.train_nano.fakequant import STORED, Precision
from tools.train_nano.graph import NanoGraph
from tools.train_nano.hooks import replaced
from tools.train_nano.measure import ROWS, WINDOW
from tools.train_nano.moe import moe
from tools.train_nano.plots import experts_plot
from tools.train_nano.reports import REPORTS, RUN, Report, run_parameters, table, write_report
from tools.train_nano.settings import nano_config

Tensor = torch.Tensor


class Loads:
    """Counts of one model's routing.

    Args:
        layers, experts: of the model.
    """

    def __init__(self, layers: int, experts: int) -> None:
        self.counts = torch.zeros((layers, experts), dtype=torch.int64)
        self.moved = torch.zeros(layers, dtype=torch.int64)
        self.tokens = 0
        self._layer = 0

    def add(self, scores: Tensor, bias: Tensor, k: int, counted: Tensor) -> None:
        """Take in the next layer's scores [N, E] at counted rows, bool [N]."""
        scores = scores[counted]
        chosen, unbiased = (_best(s, k) for s in (scores + bias, scores))
        self.counts[self._layer] += torch.bincount(chosen.flatten(), minlength=scores.shape[1])
        self.moved[self._layer] += int((chosen.sort(-1).values != unbiased.sort(-1).values).any(-1).sum())
        self._layer = (self._layer + 1) % len(self.counts)
        self.tokens += len(scores) if self._layer == 0 else 0

    def report(self) -> dict[str, Any]:
        """Shares by layer and expert, the largest and smallest relative to the mean, and what the bias changed."""
        mean = self.counts.double().mean(1, keepdim=True)
        relative = self.counts / mean.clamp_min(1e-9)
        return {
            "tokens": self.tokens,
            "load_over_mean": relative.tolist(),
            "max_over_mean": relative.amax(1).tolist(),
            "min_over_mean": relative.amin(1).tolist(),
            "dead_experts": int((self.counts == 0).sum()),
            "experts": self.counts.numel(),
            "changed_by_bias": (self.moved / max(self.tokens, 1)).tolist(),
        }


def _best(scores: Tensor, k: int) -> Tensor:
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :k]


@contextmanager
def routed(loads: Loads, counted: Callable[[], Tensor]) -> Iterator[None]:
    """Let a graph's experts be watched; `counted` gives the rows that count, bool [N]."""

    def watched(
        x: Tensor, w: Mapping[str, Tensor], k: int, text: TextConfig, precision: Precision
    ) -> tuple[Tensor, Tensor]:
        scores = torch.sqrt(torch.nn.functional.softplus(x @ w["gate"].t()))
        loads.add(scores, w["gate.bias"], k, counted())
        return moe(x, w, k, text, precision)

    with replaced(graph_module, moe=watched):
        yield


@torch.no_grad()
def measure_experts(data: Path, run: Path) -> dict[str, Any]:
    """The whole report; every token that is predicted counts once."""
    step, parameters = run_parameters(run)
    tokenizer_json = data / "tokenizer.json"
    config = nano_config(tokenizer_json)
    graph = NanoGraph(config, tokenizer_json, STORED)
    weights = graph.stored(parameters)
    loads = Loads(config.text.num_hidden_layers, config.text.n_routed_experts)
    tokens, counted = windows(load_dataset(data).test, WINDOW)
    for start in tqdm(range(0, len(tokens), ROWS), desc="rows", unit_scale=ROWS, disable=None):
        mask = counted[start : start + ROWS].flatten()
        if mask.any():
            with routed(loads, lambda mask=mask: mask):  # type: ignore[misc]
                graph.hidden(weights, tokens[start : start + ROWS, :-1])
    return {"step": step, "experts_per_token": config.text.num_experts_per_tok, **loads.report()}


def readable(report: Report) -> str:
    """The report as a table."""
    rows = list(
        zip(
            (f"layer {i}" for i in range(len(report["max_over_mean"]))),
            report["max_over_mean"],
            report["min_over_mean"],
            report["changed_by_bias"],
            strict=True,
        )
    )
    head = f"step {report['step']}, {report['tokens']:,} tokens; {report['dead_experts']} experts never chosen"
    formats = {"max/mean": "{:.2f}", "min/mean": "{:.2f}", "choice changed by bias": "{:.1%}"}
    return head + "\n" + table(("experts of", "max/mean", "min/mean", "choice changed by bias"), rows, formats)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Loads of the small model's experts on the test stream.")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="of tools.train_nano.dataset")
    parser.add_argument("--run", type=Path, default=RUN, help="of tools.train_nano.train (%(default)s)")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="where the report goes (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    report = measure_experts(arguments.data, arguments.run)
    write_report("experts", report, arguments.reports, experts_plot)
    print(json.dumps(report) if arguments.json else readable(report))


if __name__ == "__main__":
    main()

"""Whether the indexer finds what attention wants: ``python -m tools.train_nano.report_selection``.

On windows of the test stream: how much of full attention's mass the selected entries and the candidate pool hold,
beside the best, the most recent and a random choice of the same size; how far back the selected entries lie; and
what other selections do to bits per byte.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from tools.train_nano.dataset import DEFAULT_DIR, load_dataset
from tools.train_nano.evaluate import windows
from tools.train_nano.fakequant import STORED
from tools.train_nano.graph import NanoGraph, Observations
from tools.train_nano.measure import ROWS, WINDOW, Source, compare, full_rows, graph_source
from tools.train_nano.plots import selection_plot
from tools.train_nano.reports import REPORTS, RUN, Report, run_parameters, table, write_report
from tools.train_nano.selection_rules import (
    Rule,
    at_random,
    block_mass,
    covered,
    distances,
    most_recent,
    none_at_all,
    oracle,
    random_share,
    recent,
    selecting,
    visible_blocks,
)
from tools.train_nano.settings import nano_config

Tensor = torch.Tensor
_WINDOWS = 32
_TOPK_TRIED = (8, 16, 64, 128)
_CHOICES = ("selected", "oracle", "recent", "random")


class Recall:
    """Sums of covered mass over counted positions, by source and choice.

    Args:
        graph: a sparse graph.
        length: of its rows.
    """

    def __init__(self, graph: NanoGraph, length: int) -> None:
        self.text, self.length = graph.text, length
        self.sums: dict[int, dict[str, float]] = {}
        self.pool: dict[str, float] = dict.fromkeys((*_CHOICES, "positions", "all_positions"), 0.0)
        self.hits: dict[int, Tensor] = {}
        # Powers of two and the halves between, in tokens.
        self.bounds = sorted({round(2 ** (i / 2)) for i in range(2 * length.bit_length() - 1)} | {0, length})

    def add(self, seen: Observations, counted: Tensor) -> None:
        """Take in a batch; counted bool [B, T] chooses its positions."""
        for source in seen.scores:
            layers = [layer for layer in seen.masses if self.text.index_source(layer) == source]
            mass = torch.stack([seen.masses[layer] for layer in layers]).mean(0)
            visible = seen.scores[source][0] > float("-inf")
            self._add_source(source, mass, visible, seen.chosen[source], counted)
            if source == self.text.candidate_source_layer_id:
                later = torch.stack([m for layer, m in seen.masses.items() if layer >= source]).mean(0)
                self._add_pool(later, visible, seen.pools[source], counted)

    def _add_source(self, source: int, mass: Tensor, visible: Tensor, chosen: Tensor, counted: Tensor) -> None:
        k = self.text.index_topk
        rows = counted & (visible.sum(-1) > k)  # with fewer entries there is nothing to choose
        sums = self.sums.setdefault(source, dict.fromkeys((*_CHOICES, "positions", "all_positions"), 0.0))
        found = (covered(mass, chosen), oracle(mass, k), recent(mass, visible, k), random_share(mass, visible, k))
        _accumulate(sums, found, rows, counted)
        far = distances(self.text, source, self.length)
        place = torch.bucketize(far, torch.tensor(self.bounds), right=True) - 1
        hits = self.hits.setdefault(source, torch.zeros((2, len(self.bounds)), dtype=torch.float64))
        seen = (visible & rows.unsqueeze(-1)).sum(0).double().flatten()
        taken = (chosen & rows.unsqueeze(-1)).sum(0).double().flatten()
        for row, weights in enumerate((taken, seen)):
            hits[row] += torch.bincount(place.clamp_min(0).flatten(), weights, minlength=len(self.bounds))

    def _add_pool(self, mass: Tensor, visible: Tensor, pool: Tensor, counted: Tensor) -> None:
        block, k = self.text.candidate_block_size, self.text.candidate_topk_blocks
        blocks, there = block_mass(mass, block), visible_blocks(visible, block)
        rows = counted & (there.sum(-1) > k)
        found = (covered(mass, pool), oracle(blocks, k), recent(blocks, there, k), random_share(blocks, there, k))
        _accumulate(self.pool, found, rows, counted)

    def report(self) -> dict[str, Any]:
        """Recall by source, of the pool, and the share of entries selected by distance."""
        hits = {
            str(source): [
                {"from": first, "to": last, "share": taken / seen}
                for first, last, taken, seen in zip(
                    self.bounds[:-1], self.bounds[1:], *(row[:-1].tolist() for row in counts), strict=True
                )
                if seen
            ]
            for source, counts in self.hits.items()
        }
        sources = {str(source): _means(sums) for source, sums in self.sums.items()}
        return {"sources": sources, "pool": _means(self.pool), "hits": hits}


def _accumulate(sums: dict[str, float], found: tuple[Tensor, ...], rows: Tensor, counted: Tensor) -> None:
    for name, values in zip(_CHOICES, found, strict=True):
        sums[name] += float(values[rows].double().sum())
    sums["positions"] += int(rows.sum())
    sums["all_positions"] += int(counted.sum())


def _means(sums: dict[str, float]) -> dict[str, Any] | None:
    """Mean mass covered by choice, over the positions with more entries than are chosen."""
    if not sums["positions"]:
        return None
    means: dict[str, Any] = {name: sums[name] / sums["positions"] for name in _CHOICES}
    return means | {"positions": int(sums["positions"]), "all_positions": int(sums["all_positions"])}


class _Variants:
    """Graphs that select otherwise, as sources to compare."""

    def __init__(self, tokenizer_json: Path, parameters: dict[str, Tensor]) -> None:
        self._tokenizer_json, self._parameters = tokenizer_json, parameters
        self.graph = NanoGraph(nano_config(tokenizer_json), tokenizer_json, STORED)

    def sources(self) -> dict[str, Source]:
        """By name; "indexer" is the model as it is."""
        shipped = graph_source(self.graph, self._parameters)
        rules: dict[str, Rule] = {
            "most recent": most_recent, "random": at_random, "window only": none_at_all,
        }  # fmt: skip
        found = {"indexer": shipped}
        found |= {name: _ruled(shipped, rule) for name, rule in rules.items()}
        found["no pool"] = self._changed(candidate_source_layer_id=None)
        for k in _TOPK_TRIED:
            found[f"indexer, k={k}"] = self._changed(index_topk=k)
        everything = NanoGraph(self.graph.config, self._tokenizer_json, STORED, sparse=False)
        return found | {"all entries": graph_source(everything, self._parameters)}

    def _changed(self, **text: Any) -> Source:
        graph = NanoGraph(self.graph.config, self._tokenizer_json, STORED)
        graph.text = dataclasses.replace(graph.text, **text)
        return graph_source(graph, self._parameters)


def _ruled(source: Source, rule: Rule) -> Source:
    def run(rows: Tensor) -> Tensor:
        with selecting(rule):
            return source(rows)

    return run


@torch.no_grad()
def observe(graph: NanoGraph, parameters: dict[str, Tensor], tokens: Tensor, counted: Tensor) -> Recall:
    """Recall over rows int64 [N, L + 1] at counted positions."""
    recall = Recall(graph, counted.shape[1])
    weights = graph.stored(parameters)
    for start in range(0, len(tokens), ROWS):
        _, seen = graph.hidden(weights, tokens[start : start + ROWS, :-1])
        recall.add(seen, counted[start : start + ROWS])
    return recall


def measure_selection(data: Path, run: Path) -> dict[str, Any]:
    """The whole report."""
    step, parameters = run_parameters(run)
    tokens, counted = full_rows(*windows(load_dataset(data).test, WINDOW), _WINDOWS)
    variants = _Variants(data / "tokenizer.json", parameters)
    text = variants.graph.text
    report = observe(variants.graph, parameters, tokens, counted).report()
    found = compare(variants.sources(), "indexer", tokens, counted)
    bits = {name: nats / found.nats["indexer"] - 1.0 for name, nats in found.nats.items() if name != "indexer"}
    settings = {
        "index_topk": text.index_topk,
        "pool_blocks": text.candidate_topk_blocks,
        "pool_block_size": text.candidate_block_size,
        "pool_source": text.candidate_source_layer_id,
    }
    return {"step": step, "window": WINDOW, "tokens": found.tokens, **settings, **report, "bits": bits}


def readable(report: Report) -> str:
    """The report as tables."""
    rows: list[tuple[Any, ...]] = [
        (f"layer {source}", *(found[name] for name in _CHOICES), found["positions"])
        for source, found in report["sources"].items()
        if found
    ]
    if report["pool"]:
        rows.append(("pool", *(report["pool"][name] for name in _CHOICES), report["pool"]["positions"]))
    changes = list(report["bits"].items())
    return "\n\n".join(
        (
            f"step {report['step']}; mass covered where there is more than top {report['index_topk']}",
            table(("source", *_CHOICES, "positions"), rows),
            table(("selection", "bits"), changes, {"bits": "{:+.3%}"}),
        )
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="What the small model's indexer and candidate pool find.")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="of tools.train_nano.dataset")
    parser.add_argument("--run", type=Path, default=RUN, help="of tools.train_nano.train (%(default)s)")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="where the report goes (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    report = measure_selection(arguments.data, arguments.run)
    write_report("selection", report, arguments.reports, selection_plot)
    print(json.dumps(report) if arguments.json else readable(report))


if __name__ == "__main__":
    main()

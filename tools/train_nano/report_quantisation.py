"""What quantisation costs, and where: ``python -m tools.train_nano.report_quantisation``.

The trained model in f32, as stored, and in the engine on the same windows; each part of the quantisation by itself;
storing errors and outliers of every kind of tensor and activation.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tools.train_nano.dataset import DEFAULT_DIR, load_dataset
from tools.train_nano.evaluate import windows
from tools.train_nano.fakequant import FULL, STORED, Precision
from tools.train_nano.graph import NanoGraph
from tools.train_nano.hooks import PARTS, only, watching
from tools.train_nano.measure import (
    WINDOW,
    Comparison,
    Source,
    compare,
    differences,
    engine_source,
    full_rows,
    graph_source,
)
from tools.train_nano.plots import quantisation_plot
from tools.train_nano.reports import MODEL, REPORTS, RUN, Report, run_parameters, table, write_report
from tools.train_nano.settings import nano_config
from tools.train_nano.stored_kinds import FAMILIES, Tally, stored_family, weight_kinds

Tensor = torch.Tensor
Parameters = Mapping[str, Tensor]
_WINDOWS = 32
_BEFORE = Path("build/nano/run/before_pull")
_ACTIVATIONS = Precision(False, True)


class Quantisation:
    """Measures one model's quantisation.

    Args:
        data: of tools.train_nano.dataset.
        count: windows to measure on.
    """

    def __init__(self, data: Path, count: int = _WINDOWS) -> None:
        self._tokenizer_json = data / "tokenizer.json"
        self._config = nano_config(self._tokenizer_json)
        self._tokens, self._counted = full_rows(*windows(load_dataset(data).test, WINDOW), count)

    def graph(self, precision: Precision) -> NanoGraph:
        """The graph in a precision."""
        return NanoGraph(self._config, self._tokenizer_json, precision)

    def _compare(self, sources: Mapping[str, Source]) -> Comparison:
        return compare(sources, "full", self._tokens, self._counted)

    def parts(self, parameters: Parameters, model: Path) -> dict[str, Any]:
        """Cost of everything, of the weights, and of each part of the activations alone, relative to f32."""
        activations = graph_source(self.graph(_ACTIVATIONS), parameters)
        sources = {
            "full": graph_source(self.graph(FULL), parameters),
            "engine": engine_source(model),
            "stored": graph_source(self.graph(STORED), parameters),
            "weights": graph_source(self.graph(Precision(True, False)), parameters),
            "activations": activations,
        }
        sources |= {part: _partly(activations, part) for part in PARTS}
        found = self._compare(sources)
        return {"tokens": found.tokens, "cost": _cost(found), "against_full": differences(found, "full")}

    def families(self, parameters: Parameters) -> dict[str, Any]:
        """Cost of storing the weights, all and by family, relative to f32."""
        full = self.graph(FULL)
        sources = {
            "full": graph_source(full, parameters),
            "weights": graph_source(self.graph(Precision(True, False)), parameters),
            "stored": graph_source(self.graph(STORED), parameters),
        }
        sources |= {name: graph_source(full, stored_family(parameters, full.dtypes, name)) for name in FAMILIES}
        found = self._compare(sources)
        return {"cost": _cost(found), "kinds": weight_kinds(parameters, full.dtypes)}

    @torch.no_grad()
    def activations(self, parameters: Parameters) -> dict[str, dict[str, Any]]:
        """Figures of every kind of activation that is quantised."""
        tallies: dict[str, Tally] = {}
        run = graph_source(self.graph(STORED), parameters)
        with watching(lambda name, x, y: tallies.setdefault(name, Tally()).add(x, y)):
            run(self._tokens[:8, :-1])
        return {name: tally.report() for name, tally in sorted(tallies.items())}


def _partly(source: Source, part: str) -> Source:
    def run(rows: Tensor) -> Tensor:
        with only((part,)):
            return source(rows)

    return run


def _cost(found: Comparison) -> dict[str, float]:
    """Bits of every source relative to those of the full one, minus 1."""
    full = found.nats["full"]
    return {name: nats / full - 1.0 for name, nats in found.nats.items() if name != "full"}


def measure_quantisation(data: Path, run: Path, before: Path, model: Path) -> dict[str, Any]:
    """The whole report."""
    measure = Quantisation(data)
    step, parameters = run_parameters(run)
    report: dict[str, Any] = {"step": step, "windows": _WINDOWS, "window": WINDOW}
    report |= measure.parts(parameters, model)
    report["weights"] = weight_kinds(parameters, measure.graph(FULL).dtypes)
    report["activations"] = measure.activations(parameters)
    report["before_pull"] = None
    if (before / "state.safetensors").exists():
        step, parameters = run_parameters(before)
        report["before_pull"] = {"step": step, **measure.families(parameters)}
    return report


def readable(report: Report) -> str:
    """The report as tables."""
    percent = {"bits": "{:+.3%}", "top-1": "{:.2%}"}
    sides = report["against_full"]
    rows = [(name, cost, *sides[name].values()) for name, cost in report["cost"].items()]
    blocks = [
        f"step {report['step']}, {report['tokens']:,} tokens",
        table(("against full", "bits", "top-1", "mean logit diff", "max"), rows, percent),
        kinds_table(report["weights"]),
        kinds_table(report["activations"]),
    ]
    early = report["before_pull"]
    if early is not None:
        blocks += [f"before the pull onto the grid, step {early['step']}"]
        blocks += [table(("stored alone", "bits"), list(early["cost"].items()), percent), kinds_table(early["kinds"])]
    return "\n\n".join(blocks)


def kinds_table(kinds: Mapping[str, Mapping[str, Any]]) -> str:
    """Figures by kind as a table."""
    formats = dict.fromkeys(("rms error", "zeros", "largest code"), "{:.3%}") | {"max/rms": "{:.1f}"}
    rows = [
        (n, k.get("dtype"), k["relative_rms_error"], k["zeros"], k["largest_code"], k["largest_over_rms"])
        for n, k in kinds.items()
    ]
    return table(("kind", "dtype", "rms error", "zeros", "largest code", "max/rms"), rows, formats)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Cost of the small model's quantisation.")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="of tools.train_nano.dataset")
    parser.add_argument("--run", type=Path, default=RUN, help="of tools.train_nano.train (%(default)s)")
    parser.add_argument("--before", type=Path, default=_BEFORE, help="a run's state from before the pull, if kept")
    parser.add_argument("--model", type=Path, default=MODEL, help="checkpoint directory (%(default)s)")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="where the report goes (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    report = measure_quantisation(arguments.data, arguments.run, arguments.before, arguments.model)
    write_report("quantisation", report, arguments.reports, quantisation_plot)
    print(json.dumps(report) if arguments.json else readable(report))


if __name__ == "__main__":
    main()

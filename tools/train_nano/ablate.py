"""What features are worth: the model trained again without each, at one short budget.

``python -m tools.train_nano.ablate --all`` runs every variant with several seeds, one after another, skips runs
that are finished, and reports; ``--variant no-engram --seed 1`` runs one; without either it reports what is there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.train_nano.dataset import DEFAULT_DIR
from tools.train_nano.fuse import enable_fusion
from tools.train_nano.plan import Phases
from tools.train_nano.plots import ablation_plot
from tools.train_nano.reports import REPORTS, Report, table, write_report
from tools.train_nano.settings import LAYERS_AND_STAGES
from tools.train_nano.state import read_log
from tools.train_nano.train import Recipe, Trainer

# Fields of ``text_config`` that take a feature out.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "base": {},
    "no-engram": {"engram_layer_ids": []},
    "window-only": {
        "compress_ratios": [0] * LAYERS_AND_STAGES,
        "kv_source_layer_ids": [],
        "index_source_layer_ids": [],
        "candidate_source_layer_id": None,
    },
    "no-mixing": {"hc_mult": 1},
}
SEEDS: Mapping[str, int] = {"base": 3, "no-engram": 2, "window-only": 2, "no-mixing": 2}
STEPS = 300
# Long rows from the start, so that there is something to select from; activations are not quantised, which is quicker
# and the same for all.
_RECIPE = Recipe(batch=4, length=512, phases=Phases(activations=1.0, long=1.0, pull=1.0))
_RESULT = "result.json"


def run_variant(variant: str, seed: int, steps: int, data: Path, out: Path) -> dict[str, Any]:
    """Train one variant and leave ``result.json`` in `out`; a finished run is only read.

    Args:
        out: directory of the run.

    Returns:
        variant, seed, steps, parameters (their number, draft module left out), bits_per_byte of the validation
        stream, seconds.
    """
    done = out / _RESULT
    if done.exists():
        found: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        return found
    started = time.perf_counter()
    recipe = dataclasses.replace(_RECIPE, steps=steps, seed=seed, text=dict(VARIANTS[variant]))
    trainer = Trainer(recipe, data, out)
    trainer.run(steps)
    result = {
        "variant": variant,
        "seed": seed,
        "steps": steps,
        "parameters": sum(value.numel() for value in trainer.parameters.values()),
        "bits_per_byte": read_log(out / "log.jsonl")[-1]["valid_bits_per_byte"],
        "seconds": round(time.perf_counter() - started, 1),
    }
    done.write_text(json.dumps(result) + "\n", encoding="utf-8")
    (out / "state.safetensors").unlink()
    return result


def summarise(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and range of bits per byte by variant, and the mean's difference from the base's."""
    steps = sorted({result["steps"] for result in results})
    if len(steps) > 1:
        raise SystemExit(f"runs of {steps} steps cannot be compared: give each budget its own --out")
    found: dict[str, Any] = {"steps": steps[0] if steps else 0, "variants": {}}
    by_variant = {name: [r for r in results if r["variant"] == name] for name in VARIANTS}
    bits = {name: [r["bits_per_byte"] for r in runs] for name, runs in by_variant.items() if runs}
    for name, values in bits.items():
        runs, mean = by_variant[name], statistics.fmean(values)
        found["variants"][name] = {
            "bits_per_byte": values,
            "mean": mean,
            "lowest": min(values),
            "highest": max(values),
            "worse_than_base": mean / statistics.fmean(bits["base"]) - 1.0 if "base" in bits else None,
            "parameters": runs[0]["parameters"],
            "seconds": statistics.fmean(r["seconds"] for r in runs),
        }
    return found


def finished(out: Path) -> list[dict[str, Any]]:
    """Results of all finished runs under a directory, in the order of the variants."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob(f"*/{_RESULT}"))]
    order = list(VARIANTS)
    return sorted(found, key=lambda result: (order.index(result["variant"]), result["seed"]))


def readable(report: Report) -> str:
    """The report as a table."""
    rows = [
        (name, len(v["bits_per_byte"]), v["mean"], v["lowest"], v["highest"], v["worse_than_base"], v["parameters"])
        for name, v in report["variants"].items()
    ]
    heads = ("variant", "seeds", "mean bpb", "lowest", "highest", "vs base", "parameters")
    return f"{report['steps']} steps each\n" + table(heads, rows, {"vs base": "{:+.2%}", "parameters": "{:,}"})


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Train the small model without a feature, and compare.")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--variant", choices=list(VARIANTS), help="run one variant")
    chosen.add_argument("--all", action="store_true", help="run every variant with every seed")
    parser.add_argument("--seed", type=int, default=0, help="of the one variant (%(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimiser steps of a run (%(default)s)")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="of tools.train_nano.dataset")
    parser.add_argument("--out", type=Path, default=Path("build/nano/ablate"), help="one directory a run in here")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="where the report goes (%(default)s)")
    parser.add_argument("--compile", action="store_true", help="compile elementwise chains: faster after a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.compile:
        enable_fusion()
    runs = [(arguments.variant, arguments.seed)] if arguments.variant else []
    if arguments.all:
        # Seed by seed, so that an interrupted series can already be compared.
        runs = [(name, seed) for seed in range(max(SEEDS.values())) for name in VARIANTS if seed < SEEDS[name]]
    for name, seed in runs:
        run_variant(name, seed, arguments.steps, arguments.data, arguments.out / f"{name}-{seed}")
    report = summarise(finished(arguments.out))
    write_report("ablations", report, arguments.reports, ablation_plot)
    print(json.dumps(report) if arguments.json else readable(report))


if __name__ == "__main__":
    main()

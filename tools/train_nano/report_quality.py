"""How well the model predicts text it has not seen: ``python -m tools.train_nano.report_quality``.

Bits per byte of the test stream, of the shipped checkpoint in the engine and of the training graph with and without
quantisation, beside Kneser-Ney models; by position in long documents; and the course of the training.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from tandem.tokenizer.tokenizer import Tokenizer
from tools.train_nano.dataset import DEFAULT_DIR, Dataset, load_dataset, load_tokenizer
from tools.train_nano.engine_path import EngineScorer
from tools.train_nano.evaluate import documents, windows
from tools.train_nano.fakequant import FULL, STORED
from tools.train_nano.graph import NanoGraph
from tools.train_nano.kneser_ney import MAX_ORDER, KneserNey
from tools.train_nano.kneser_ney import windows as ngrams
from tools.train_nano.measure import WINDOW, bits_per_byte, compare, differences, engine_source, graph_source
from tools.train_nano.plots import quality_plot
from tools.train_nano.reports import MODEL, REPORTS, RUN, Report, run_parameters, table, write_report
from tools.train_nano.settings import nano_config
from tools.train_nano.state import read_log
from tools.train_nano.tokenizer import VOCAB_SIZE

Tensor = torch.Tensor
RANGES = (0, 64, 256, 512, 1024, 2048)
_LONG = 1024  # documents at least this long show what happens beyond the training context
_SMOOTHED = 20  # steps that a point of the loss curve stands for


def kneser_ney_bits(dataset: Dataset) -> dict[str, Any]:
    """Bits per byte of the test stream by order, of the validation stream for the highest, and that model."""
    text = dataset.text.numpy()
    found: dict[str, float] = {}
    for order in tqdm(range(1, MAX_ORDER + 1), desc="Kneser-Ney", disable=None):
        model = KneserNey.fit(text, order, VOCAB_SIZE)
        found[str(order)] = model.bits(dataset.test.numpy()) / dataset.test_bytes
    return {"test": found, "valid": model.bits(dataset.valid.numpy()) / dataset.valid_bytes, "model": model}


def position_bits(
    nats: list[np.ndarray[Any, Any]], sizes: list[np.ndarray[Any, Any]], ranges: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Bits per byte by position.

    Args:
        nats, sizes: of each document, by target: its negative log likelihood and its bytes.  The target at
            index i stands at position i + 1, after BOS at 0.
        ranges: bounds; a range holds its first position and not its last.
    """
    found = []
    for first, last in zip(ranges[:-1], ranges[1:], strict=True):
        part = slice(max(first - 1, 0), last - 1)
        size = sum(int(s[part].sum()) for s in sizes)
        if size:
            bits = bits_per_byte(sum(float(n[part].sum()) for n in nats), size)
            tokens = sum(len(n[part]) for n in nats)
            found.append({"first": first, "last": last, "tokens": tokens, "bits_per_byte": bits})
    return found


def long_documents(model: Path, dataset: Dataset, tokenizer: Tokenizer, bar_model: KneserNey) -> dict[str, Any]:
    """Bits per byte by position range, of the engine and of a Kneser-Ney model, over long test documents."""
    scorer = EngineScorer(model)
    lengths = np.array([len(tokenizer.token_bytes.get(i, True)) for i in range(VOCAB_SIZE)])
    chosen = [d[: RANGES[-1]] for d in documents(dataset.test) if len(d) >= _LONG]
    ours, bars, sizes = [], [], []
    for document in tqdm(chosen, desc="long documents", disable=None):
        logits = scorer.logits(document[:-1].tolist()).double()
        ours.append(torch.nn.functional.cross_entropy(logits, document[1:], reduction="none").numpy())
        bars.append(-np.log(bar_model.probabilities(ngrams(document.numpy(), bar_model.order))))
        sizes.append(lengths[document[1:].numpy()])
    scorer.close()
    rows = position_bits(ours, sizes, RANGES)
    for row, bar in zip(rows, position_bits(bars, sizes, RANGES), strict=True):
        row["kneser_ney"] = bar["bits_per_byte"]
    return {"documents": len(chosen), "least_tokens": _LONG, "ranges": rows}


def curve(run: Path) -> dict[str, Any]:
    """Loss (means of 20 steps, nats a token) and validation bits per byte by step, and where phases begin."""
    lines = read_log(run / "log.jsonl")
    recipe = json.loads((run / "recipe.json").read_text(encoding="utf-8"))
    loss = [
        [lines[start]["step"], sum(line["loss"] for line in lines[start : start + _SMOOTHED]) / _SMOOTHED]
        for start in range(0, len(lines) - _SMOOTHED + 1, _SMOOTHED)
    ]
    valid = [[line["step"], line["valid_bits_per_byte"]] for line in lines if "valid_bits_per_byte" in line]
    phases = {name: share * recipe["steps"] for name, share in recipe["phases"].items()}
    return {
        "steps": recipe["steps"],
        "done": len(lines),
        "minutes": sum(line["seconds"] for line in lines) / 60.0,
        "phases": phases,
        "loss": loss,
        "valid": valid,
    }


def measure_quality(data: Path, run: Path, model: Path) -> dict[str, Any]:
    """The whole report."""
    dataset, tokenizer_json = load_dataset(data), data / "tokenizer.json"
    step, parameters = run_parameters(run)
    config = nano_config(tokenizer_json)
    sources = {
        "full": graph_source(NanoGraph(config, tokenizer_json, FULL), parameters),
        "stored": graph_source(NanoGraph(config, tokenizer_json, STORED), parameters),
        "engine": engine_source(model),
    }
    tokens, counted = windows(dataset.test, WINDOW)
    bars = kneser_ney_bits(dataset)
    long = long_documents(model, dataset, load_tokenizer(data), bars["model"])
    found = compare(sources, "full", tokens, counted)
    bits = {name: bits_per_byte(nats, dataset.test_bytes) for name, nats in found.nats.items()}
    best = bars["test"][str(MAX_ORDER)]
    return {
        "step": step,
        "test_bytes": dataset.test_bytes,
        "test_tokens": found.tokens,
        "window": WINDOW,
        "bits_per_byte": bits,
        "perplexity_per_token": {name: math.exp(nats / found.tokens) for name, nats in found.nats.items()},
        "kneser_ney": bars["test"],
        "kneser_ney_valid": bars["valid"],
        "kneser_ney_order": MAX_ORDER,
        "below_kneser_ney": 1.0 - bits["engine"] / best,
        "engine_over_full": bits["engine"] / bits["full"] - 1.0,
        "against_full": differences(found, "full"),
        "positions": long,
        "curve": curve(run),
    }


def readable(report: Report) -> str:
    """The report as tables."""
    bits: Mapping[str, float] = report["bits_per_byte"]
    rows = [*bits.items(), *((f"Kneser-Ney {order}", value) for order, value in report["kneser_ney"].items())]
    ranges = [
        (f"{r['first']}-{r['last']}", r["tokens"], r["bits_per_byte"], r["kneser_ney"])
        for r in report["positions"]["ranges"]
    ]
    agreement = [(name, *values.values()) for name, values in report["against_full"].items()]
    return "\n\n".join(
        (
            f"step {report['step']}, {report['test_tokens']:,} tokens, {report['test_bytes']:,} bytes; "
            f"engine {report['below_kneser_ney']:.2%} below Kneser-Ney, {report['engine_over_full']:+.2%} over full",
            table(("model", "bits per byte"), rows),
            table(("against full", "top-1", "mean logit diff", "max"), agreement),
            table(("position", "tokens", "bits per byte", "Kneser-Ney"), ranges),
        )
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Bits per byte of the small model, beside Kneser-Ney models.")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIR, help="of tools.train_nano.dataset")
    parser.add_argument("--run", type=Path, default=RUN, help="of tools.train_nano.train (%(default)s)")
    parser.add_argument("--model", type=Path, default=MODEL, help="checkpoint directory (%(default)s)")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="where the report goes (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    report = measure_quality(arguments.data, arguments.run, arguments.model)
    write_report("quality", report, arguments.reports, quality_plot)
    print(json.dumps(report) if arguments.json else readable(report))


if __name__ == "__main__":
    main()

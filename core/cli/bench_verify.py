"""`tandem bench verify-schedule`: the scheduling of verified rows against knowing the rates in advance."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from tandem.cli.options import integer, positive
from tandem.cli.plots import new_figure, save
from tandem.speculation.simulate import POLICIES, SHAPES, Outcome, sweep

CORRELATIONS = (0.0, 0.3, 0.6, 0.9, 0.99)
OTHERS = ("causal", "lagged", "none", "all")
BATCHES = (1, 2, 4, 16, 64, 256, 512)


def add_parser(subjects: Any) -> None:
    """Register the subject."""
    parser: argparse.ArgumentParser = subjects.add_parser(
        "verify-schedule", help="simulate confidence-scheduled verification; needs no model"
    )
    parser.add_argument(
        "--correlations", type=float, nargs="+", default=CORRELATIONS, help="of a request's rates from step to step"
    )
    parser.add_argument("--batches", type=positive, nargs="+", default=BATCHES, help="requests at once")
    parser.add_argument("--shapes", choices=SHAPES, nargs="+", default=SHAPES, help="of the random cost curves")
    parser.add_argument("--drafts", type=integer(1, 64), default=5, help="drafts of a request in a step (%(default)s)")
    parser.add_argument("--steps", type=positive, default=256, help="steps of each engine (%(default)s)")
    parser.add_argument("--noise", type=float, default=0.0, help="error of the confidences, in log-odds (%(default)s)")
    parser.add_argument("--seed", type=integer(0, (1 << 64) - 1), default=0, help="of everything random (%(default)s)")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--plot", metavar="FILE", help="also draw the shares by batch; needs matplotlib")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Simulate and print."""
    outcomes = sweep(
        arguments.correlations,
        arguments.batches,
        arguments.shapes,
        drafts=arguments.drafts,
        steps=arguments.steps,
        seed=arguments.seed,
        noise=arguments.noise,
    )
    print(json.dumps([to_dict(outcome) for outcome in outcomes]) if arguments.json else table(outcomes))
    if arguments.plot:
        plot(outcomes, arguments.plot)
    return 0


def to_dict(outcome: Outcome) -> dict[str, Any]:
    """One simulated engine, with each policy's share of the oracle."""
    return {
        "correlation": outcome.correlation,
        "batch": outcome.batch,
        "shape": outcome.shape,
        "of_oracle": {policy: outcome.share(policy) for policy in POLICIES},
        "rows": outcome.rows,
        "tokens_per_time": outcome.value,
        "noise": outcome.noise,
    }


def table(outcomes: Sequence[Outcome]) -> str:
    """A line for each correlation and batch: means over the curves, and the worst curve."""
    lines = [
        "Expected tokens per time as a share of the best budget for each step's true rates, mean over the curves.",
        f"{'corr':>5} {'batch':>6} {'scheduled':>10} {'(worst curve)':>22} "
        + " ".join(f"{policy:>7}" for policy in OTHERS),
    ]
    for key in dict.fromkeys((o.correlation, o.batch) for o in outcomes):
        cell = [o for o in outcomes if (o.correlation, o.batch) == key]
        mean = {p: sum(o.share(p) for o in cell) / len(cell) for p in POLICIES}
        worst = min(cell, key=lambda o: o.share("scheduled"))
        lines.append(
            f"{key[0]:5.2f} {key[1]:6d} {mean['scheduled']:10.4f} "
            f"{worst.shape:>14} {worst.share('scheduled'):7.4f} "
            + " ".join(f"{mean[p]:7.4f}" for p in OTHERS)
        )
    lines.append("causal: the best any budget can do that knows the law of the rates but not the next ones.")
    return "\n".join(lines)


def plot(outcomes: Sequence[Outcome], file: str) -> None:
    """Draw the scheduled share by batch, a line for each correlation.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = new_figure()
    axes = figure.add_subplot()
    for correlation in dict.fromkeys(o.correlation for o in outcomes):
        own = [o for o in outcomes if o.correlation == correlation]
        batches = list(dict.fromkeys(o.batch for o in own))
        shares = [[o.share("scheduled") for o in own if o.batch == batch] for batch in batches]
        axes.plot(batches, [sum(s) / len(s) for s in shares], marker="o", label=f"correlation {correlation}")
    axes.axhline(0.98, linestyle=":", color="grey")
    axes.set(xscale="log", xlabel="requests", ylabel="share of the oracle")
    axes.legend()
    save(figure, file)

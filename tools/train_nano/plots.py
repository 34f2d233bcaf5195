"""The pictures of the reports: one function a report, from its numbers to a small PNG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display needed

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from PIL import Image  # noqa: E402  a dependency of matplotlib

Report = Mapping[str, Any]
_DPI = 100
_COLOURS = 256
_INK = "#1f3b5c"
_SECOND = "#c2602d"
_THIRD = "#5b8c5a"
_FAINT = "#b0b0b0"


def _save(figure: Figure, path: Path) -> None:
    """Write 900 pixels wide; a palette of few colours keeps the file small."""
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=_DPI)
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(_COLOURS).save(path, optimize=True)


def quality_plot(report: Report, path: Path) -> None:
    """Loss and validation bits per byte by step with the phases and the Kneser-Ney line; bits by position."""
    course = report["curve"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), width_ratios=(1.7, 1))
    loss = left.twinx()
    loss.plot(*_columns(course["loss"]), color=_FAINT, linewidth=1)
    loss.set_ylabel("training loss, nats a token", color="#808080")
    left.plot(*_columns(course["valid"]), "o-", color=_INK, markersize=3, label="validation")
    order = report["kneser_ney_order"]
    left.axhline(report["kneser_ney_valid"], color=_SECOND, linestyle="--", label=f"Kneser-Ney {order}, validation")
    inside = {"transform": left.get_xaxis_transform(), "rotation": 90, "va": "top", "ha": "right", "fontsize": 7}
    by_step: dict[float, list[str]] = {}
    for name, step in course["phases"].items():
        by_step.setdefault(step, []).append(name)
    for step, names in by_step.items():
        left.axvline(step, color=_THIRD, linewidth=0.8, linestyle=":")
        left.text(step, 0.98, ", ".join(names), color=_THIRD, **inside)
    left.set(xlabel="step", ylabel="bits per byte", xlim=(0, course["steps"]))
    left.set_zorder(loss.get_zorder() + 1)
    left.patch.set_visible(False)
    left.legend(fontsize=8, loc="lower left")
    ranges = report["positions"]["ranges"]
    places = range(len(ranges))
    for shift, key, colour, name in (
        (-0.2, "bits_per_byte", _INK, "engine"),
        (0.2, "kneser_ney", _SECOND, f"Kneser-Ney {order}"),
    ):
        right.bar([p + shift for p in places], [r[key] for r in ranges], 0.4, color=colour, label=name)
    right.set_xticks(places, [f"{r['first']}-\n{r['last']}" for r in ranges], fontsize=8)
    right.set(xlabel="position in long documents", ylabel="bits per byte")
    right.margins(y=0.2)
    right.legend(fontsize=8, loc="upper right", ncols=2)
    _save(figure, path)


def _columns(rows: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [row[0] for row in rows], [row[1] for row in rows]


def quantisation_plot(report: Report, path: Path) -> None:
    """Cost of each part, and outliers of every kind of tensor and activation."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 6), width_ratios=(1, 1.3))
    names = list(report["cost"])
    left.barh(names, [100 * report["cost"][name] for name in names], color=_INK)
    left.axvline(0, color="black", linewidth=0.6)
    left.invert_yaxis()
    left.set_xlabel("more bits than full precision, %")
    kinds = report["weights"] | report["activations"]
    colours = [_INK if name in report["weights"] else _SECOND for name in kinds]
    right.barh(list(kinds), [kind["largest_over_rms"] for kind in kinds.values()], color=colours)
    right.invert_yaxis()
    right.tick_params(axis="y", labelsize=6.5)
    right.set_ylim(len(kinds) - 0.5, -0.5)
    right.set_xscale("log")
    right.set_xlabel("largest value / rms (blue: weights, red: activations)", fontsize=8)
    _save(figure, path)


def selection_plot(report: Report, path: Path) -> None:
    """Mass covered by source and choice; how often an entry is selected by its distance."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    found = {f"layer {source}": values for source, values in report["sources"].items() if values}
    if report["pool"]:
        found["pool"] = report["pool"]
    colours = {"selected": _INK, "oracle": _THIRD, "recent": _SECOND, "random": _FAINT}
    for row, (choice, colour) in enumerate(colours.items()):
        heights = [100 * values[choice] for values in found.values()]
        left.bar([i + 0.2 * (row - 1.5) for i in range(len(found))], heights, 0.2, color=colour, label=choice)
    left.set_xticks(range(len(found)), list(found), fontsize=8)
    left.set(ylabel="% of full attention's mass", ylim=(0, 100))
    left.legend(fontsize=7, ncols=4, loc="upper center")
    for (source, bins), colour in zip(report["hits"].items(), (_INK, _SECOND, _THIRD, "#8060a0"), strict=False):
        middle = [(max(b["from"], 0.5) * b["to"]) ** 0.5 for b in bins]
        right.plot(middle, [100 * b["share"] for b in bins], "o-", markersize=3, color=colour, label=f"layer {source}")
    right.set(xscale="log", xlabel="tokens back to the entry", ylabel="% of visible entries selected", ylim=(0, None))
    right.legend(fontsize=8)
    _save(figure, path)


def experts_plot(report: Report, path: Path) -> None:
    """Load of every expert relative to the mean of its layer."""
    figure, axes = plt.subplots(figsize=(9, 3.4))
    shown = axes.imshow(report["load_over_mean"], aspect="auto", cmap="RdBu_r", vmin=0, vmax=2)
    figure.colorbar(shown, label="load / mean", pad=0.02)
    for row, values in enumerate(report["load_over_mean"]):
        for column, value in enumerate(values):
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=7)
    axes.set(xlabel="expert", ylabel="layer")
    axes.set_xticks(range(len(report["load_over_mean"][0])))
    axes.set_yticks(range(len(report["load_over_mean"])))
    _save(figure, path)


def replay_plot(report: Report, path: Path) -> None:
    """Divergence after the prompt and in its continuation by prompt length, a line for each number of kept rows."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    keeps = sorted({row["keep"] for row in report["rows"]})
    for side, key, title in zip(axes, ("first", "rest"), ("token after the prompt", "continuation"), strict=True):
        for keep, colour in zip(keeps, (_INK, _SECOND, _THIRD, "#8060a0", "#c09020"), strict=False):
            rows = [row for row in report["rows"] if row["keep"] == keep and row[key]["kl"] > 0]
            side.plot(
                [row["length"] for row in rows], [row[key]["kl"] for row in rows], "o-", markersize=3, color=colour,
                label=f"keep {keep}",
            )  # fmt: skip
        side.set(xscale="log", yscale="log", xlabel="tokens in the prompt", title=title)
    axes[0].set_ylabel("KL from off, nats")
    axes[0].legend(fontsize=8)
    _save(figure, path)


def ablation_plot(report: Report, path: Path) -> None:
    """Mean bits per byte of each variant, every seed as a dot."""
    figure, axes = plt.subplots(figsize=(9, 3.4))
    names = list(report["variants"])
    for row, name in enumerate(names):
        variant = report["variants"][name]
        axes.barh(row, variant["mean"], color=_INK if name == "base" else _FAINT, height=0.6)
        axes.plot(variant["bits_per_byte"], [row] * len(variant["bits_per_byte"]), "o", color=_SECOND, markersize=5)
    values = [v for name in names for v in report["variants"][name]["bits_per_byte"]]
    if values:
        margin = max(max(values) - min(values), 0.01)
        axes.set_xlim(min(values) - margin / 2, max(values) + margin / 4)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"validation bits per byte after {report['steps']} steps (less is better; the axis starts above 0)")
    _save(figure, path)


def acceptance_plot(report: Sequence[Report], path: Path) -> None:
    """Share of drafts still accepted by position; share accepted by confidence."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    colours = (_INK, _SECOND, _THIRD, "#8060a0", _FAINT)
    for run, colour in zip(report, colours, strict=False):
        name = f"temperature {run['temperature']}" + ("" if run["markov"] else ", no Markov head")
        survival = [100 * share for share in run["survival"]]
        left.plot(range(1, len(survival) + 1), survival, "o-", markersize=4, color=colour, label=name)
        if run["markov"]:
            bins = [b for b in run["bins"] if b["events"]]
            points = ([b["confidence"] for b in bins], [b["accepted"] for b in bins])
            right.plot(*points, "o-", markersize=4, color=colour, label=name)
    right.plot([0, 1], [0, 1], color="black", linewidth=0.6, linestyle=":")
    left.set(xlabel="draft", ylabel="% of steps that accept it", ylim=(0, 100))
    right.set(xlabel="confidence", ylabel="share accepted", xlim=(0, 1), ylim=(0, 1))
    left.legend(fontsize=7)
    right.legend(fontsize=7)
    _save(figure, path)

"""The pictures of the reports: one function a report, from its numbers to a small PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display needed

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

Report = Mapping[str, Any]
_DPI = 100
_INK = "#1f3b5c"
_SECOND = "#c2602d"
_THIRD = "#5b8c5a"
_FAINT = "#b0b0b0"


def _save(figure: Figure, path: Path) -> None:
    """Write 900 pixels wide; a palette keeps the file small."""
    figure.tight_layout()
    figure.savefig(path, dpi=_DPI, pil_kwargs={"optimize": True})
    plt.close(figure)


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
    axes.set_xlabel(f"validation bits per byte after {report['steps']} steps (lower is better; the axis does not start at 0)")
    _save(figure, path)

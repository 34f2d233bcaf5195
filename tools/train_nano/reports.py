"""What every report shares: where it goes, how its table is printed, which parameters it measures."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tools.train_nano.state import load_state

Report = Mapping[str, Any]
REPORTS = Path("build/nano/reports")
RUN = Path("build/nano/run")
MODEL = Path("build/nano/model")


def write_report(name: str, report: Report, directory: Path, draw: Callable[[Report, Path], None] | None) -> None:
    """Write ``<name>.json`` and, if it has one, its picture ``<name>.png``."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if draw is not None:
        draw(report, directory / f"{name}.png")


def read_report(name: str, directory: Path) -> dict[str, Any] | None:
    """A written report, None if there is none."""
    path = directory / f"{name}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]], formats: Mapping[str, str] | None = None) -> str:
    """Columns of text, the first to the left and numbers to the right; floats have four digits unless `formats`."""
    known = formats or {}

    def cell(head: str, value: Any) -> str:
        if value is None:
            return "-"
        if head in known and not isinstance(value, str):
            return known[head].format(value)
        return f"{value:.4f}" if isinstance(value, float) else str(value)

    cells = [list(heads), *([cell(h, v) for h, v in zip(heads, row, strict=True)] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    padded = ([r[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(r[1:], widths[1:], strict=True))] for r in cells)
    return "\n".join("  ".join(row).rstrip() for row in padded)


def run_parameters(run: Path) -> tuple[int, dict[str, torch.Tensor]]:
    """Steps done and parameters of a run, which may go on meanwhile.

    Raises:
        SystemExit: there is no state.
    """
    path = run / "state.safetensors"
    if not path.exists():
        raise SystemExit(f"{path} is missing: run python -m tools.train_nano.train --out {run}")
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "state.safetensors"
        copy.write_bytes(path.read_bytes())
        step, parameters, _ = load_state(copy)
    return step, parameters

"""The plots of the page, by matplotlib; without it the page has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.cpu import derive
from benchmarks.cpu.derive import Result

SHOWN = 14  # ops in a plot
SIZE, PEER_SIZE = (8, 4.5), "mid"


def draw(result: Result, folder: Path) -> list[str]:
    """Write the plots that the result has data for; their file names."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for size, row in result["sizes"].items():
        decode = row.get("ops", {}).get("decode", [])
        if decode:
            names.append(_save(_ops(Figure(figsize=SIZE), decode[0], size), folder, f"ops_{size}.png"))
    if result["sizes"].get(PEER_SIZE, {}).get("decode"):
        names.append(_save(_decode(Figure(figsize=SIZE), result), folder, "decode.png"))
    if result.get("context") and PEER_SIZE in result["sizes"]:
        names.append(_save(_context(Figure(figsize=SIZE), result), folder, "context.png"))
    return names


def _save(figure: Any, folder: Path, name: str) -> str:
    figure.tight_layout()
    figure.savefig(folder / name, dpi=110)
    return name


def _ops(figure: Any, row: dict[str, Any], size: str) -> Any:
    """Time of each op beside its floor, of one decode step."""
    axes, rows = figure.subplots(), row["rows"][:SHOWN][::-1]
    places = range(len(rows))
    axes.barh([p + 0.2 for p in places], [1e3 * r["seconds"] for r in rows], 0.4, label="measured")
    axes.barh([p - 0.2 for p in places], [1e3 * r["floor_s"] for r in rows], 0.4, label="floor")
    axes.set_yticks(list(places), [f"{r['op']} ({r['calls']:.0f})" for r in rows], fontsize=8)
    axes.set_xlabel("ms a step")
    axes.set_title(f"{size}: a decode step, batch {row['batch']}")
    axes.legend()
    return figure


def _decode(figure: Any, result: Result) -> Any:
    """Tokens per second by batch: measured, at the floor, and the peers."""
    axes, rows = figure.subplots(), derive.decode_rows(result, PEER_SIZE)
    batches = [row["batch"] for row in rows]
    axes.plot(batches, [row["batch"] / row["floor_s"] for row in rows], "k--", label="floor")
    axes.plot(batches, [row["tokens_per_s"]["median"] for row in rows], "o-", label="Tandem")
    for row in derive.peer_rows(result):
        points = [(batch, row[f"decode_{batch}"]["median"]) for batch in (1, 8) if f"decode_{batch}" in row]
        axes.plot(*zip(*points, strict=True), "x:", label=f"{row['peer']} {row['variant']}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set_xlabel("requests")
    axes.set_ylabel("tokens a second")
    axes.set_title(f"{PEER_SIZE}: decode")
    axes.legend(fontsize=7)
    return figure


def _context(figure: Any, result: Result) -> Any:
    """Time of a decoded token by context, and its floor."""
    axes, rows = figure.subplots(), derive.context_rows(result, PEER_SIZE)
    lengths = [row["context"] for row in rows]
    axes.plot(lengths, [1e3 * row["step_s"]["median"] for row in rows], "o-", label="Tandem")
    axes.plot(lengths, [1e3 * row["floor_s"] for row in rows], "k--", label="floor")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xticks(lengths, [f"{length // 1024}k" for length in lengths])
    axes.set_xlabel("tokens of context")
    axes.set_ylabel("ms a token")
    axes.set_title(f"{PEER_SIZE}: decode, batch 1")
    axes.legend()
    return figure

"""A comparison as one self-contained page, as JSON and as one page of text."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tandem.parity.diff import Difference, OpDiff
from tandem.parity.measure import TIE
from tandem.parity.plots import Series, chart
from tandem.parity.verdict import Verdict

BLUE, ORANGE, GREY, RED, GREEN = "#1f5fa8", "#b45309", "#6b7280", "#b3261e", "#1b7f3b"
COLOURS = {"PASS": GREEN, "TIE": ORANGE, "FAIL": RED}
SHOWN = 40  # rows of a table
FIRST, LAST = ("step", "embed", "engram"), ("hc", "norm", "head", "sampler")  # sites outside layers, in model order
LOCAL = "every call had A's inputs: nothing here shows how a whole run on B would go (parity replay --mode free does)"
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
.verdict{border-left:.5rem solid;padding:.6rem 1rem;background:#f6f7f9;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;table-layout:auto;font-size:13px}
td,th{border-bottom:1px solid #ddd;padding:.25rem .5rem;text-align:left;vertical-align:top}
td.site{overflow-wrap:anywhere;min-width:10rem}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.wide{overflow-x:auto}svg{width:100%;min-width:34rem;height:auto;font-family:inherit}
code{background:#f6f7f9;overflow-wrap:anywhere}.bad{color:#b3261e;font-weight:600}
"""


def write(folder: Path, found: Difference, outcome: Verdict) -> list[Path]:
    """Write report.html, results.json and summary.txt into a directory, made where it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "report.html": page(found, outcome),
        "results.json": json.dumps({"verdict": outcome.to_json()} | found.to_json(), indent=1) + "\n",
        "summary.txt": summary(found, outcome),
    }
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in files]


def number(value: float | None) -> str:
    """A number of a table."""
    return "-" if value is None else "inf" if math.isinf(value) else f"{value:.3g}"


def worst(found: Difference) -> list[OpDiff]:
    """Calls by their own error as a share of the gate, greatest first."""
    return sorted(found.ops, key=lambda op: (-op.share, op.record.id))


def summary(found: Difference, outcome: Verdict) -> str:
    """At most one page of text."""
    one, two = found.shown
    lines = [outcome.headline(), f"A: {one}   B: {two}   compared as: {found.mode}", ""]
    if outcome.status == "FAIL":
        told = outcome.error()
        lines += [f"{name}: {getattr(told, name)}" for name in ("where", "why", "fix")] + [""]
    lines += [f"{len(found.ops)} calls compared, {sum(op.same for op in found.ops)} with equal bits"]
    if found.mode == "local":
        lines += [LOCAL]
    for kind, rate in found.rates().items():
        lines.append(f"{kind}: {rate.n} decisions, {rate.value:.2%} flipped (95%: {rate.low:.2%} to {rate.high:.2%})")
    lines += _model_lines(found)
    if found.flips:
        lines += ["", "first flips:"]
        for flip in found.flips[:10]:
            lines.append(
                f"  {flip.verdict:9} {flip.kind} step {flip.step} {flip.site} row {flip.row}: {flip.told()}"
            )
    lines += _own_errors(found)
    lines += ["", "greatest local errors of B (share of the gate):"]
    for op in worst(found)[:10]:
        place = f"{op.record.op} {op.record.place} step {op.record.step}, record {op.record.id}"
        lines.append(f"  {number(op.share):>8}  {place}")
    lines += ["", *(f"note: {note}" for note in outcome.notes), _drafts(found),
              "record N: call N of run A, counted from 0; its line in index.jsonl has this id"]
    return "\n".join(lines) + "\n"


def _drafts(found: Difference) -> str:
    judged, one, two = found.drafts
    return f"drafts: {judged} judged, A took {one}, B took {two}" if judged else "drafts: none were judged"


def _own_errors(found: Difference) -> list[str]:
    """Calls of A outside their classes."""
    bad = [op for op in found.ops if op.outside_one]
    if not bad:
        return []
    lines = ["", f"A's own calls outside their class ({len(bad)}):"]
    for op in bad[:10]:
        leaf = op.outside_one
        told = "" if leaf is None else f": {leaf.leaf} {number(leaf.value)} {leaf.metric} > {leaf.threshold:.3g}"
        lines.append(f"  {op.record.op} {op.record.place} step {op.record.step}, record {op.record.id}{told}")
    return lines


def _model_lines(found: Difference) -> list[str]:
    if found.mode == "local":
        return []
    model = found.model
    if model is None:
        return ["logits: none recorded in both"]
    kl, top = model.divergence, model.agreement
    first = "none" if found.divergent is None else f"step {found.divergent}"
    return [
        f"KL(A||B): mean {kl.value:.3g} nats (95%: {kl.low:.3g} to {kl.high:.3g}, n={kl.n}), "
        f"greatest {model.greatest:.3g}",
        f"top-1 agreement: {top.value:.2%} (95%: {top.low:.2%} to {top.high:.2%}, n={top.n})",
        f"first step with another token: {first}, of {found.steps} steps with tokens",
    ]


def page(found: Difference, outcome: Verdict) -> str:
    """The whole page; it names nothing outside itself."""
    one, two = (html.escape(name) for name in found.shown)
    colour = COLOURS[outcome.status]
    told = html.escape(str(outcome.error())) if outcome.status == "FAIL" else html.escape(outcome.headline())
    lines = _model_lines(found) or [LOCAL]
    model = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    own = "".join(f"<li>{html.escape(line)}</li>" for line in _own_errors(found)[2:])
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in outcome.notes)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{outcome.status}: parity of {one} and {two}</title><style>{STYLE}</style></head><body>
<h1>Parity of {one} (A) and {two} (B), {html.escape(found.mode)}</h1>
<div class="verdict" style="border-color:{colour}"><strong style="color:{colour}">{outcome.status}</strong> {told}</div>
<ul>{notes}</ul>
<h2>Error by layer</h2><p>Greatest relative error of a row: of B's own ops on their own inputs, of the inputs carried
in, and of the outputs.</p>{_by_layer(found)}
<h2>Decision flips by step</h2>{_flips_by_step(found)}
<h2>Logit margins</h2><p>Distance of A's two best logits in noise floors. A flip up to its limit is a tie: 2 floors, and
where earlier ops carry legal noise in, twice that noise too.</p>
{_margins(found)}
<h2>Model level</h2>{model}
<h2>Flips</h2>{_flip_table(found)}
<h2>Greatest local errors</h2><p>Record N is call N of run A, counted from 0.</p>{_op_table(found)}
<h2>A's own calls outside their class</h2>{f"<ul>{own}</ul>" if own else "<p>None.</p>"}
<h2>Drafts</h2><p>{html.escape(_drafts(found))}</p>
<h2>Left out</h2><p>Records of A that B lacks: {len(found.unmatched)}.</p>
</body></html>
"""


def _by_layer(found: Difference) -> str:
    """Layers in the order of the model; calls outside layers by the first part of their site."""
    greatest: dict[str, list[float]] = {}
    for op in found.ops:
        name = str(op.record.layer) if op.record.layer is not None else op.record.site.split(".")[0] or "step"
        row = greatest.setdefault(name, [0.0, 0.0, 0.0])
        values = (op.local, op.inherited, op.free)
        greatest[name] = [max(a, b if math.isfinite(b) else 0.0) for a, b in zip(row, values, strict=True)]
    order = {name: i for i, name in enumerate(sorted(greatest, key=_in_model))}
    kinds = ((0, "local error of B", BLUE), (1, "inherited", ORANGE), (2, "free error", GREY))
    series = [
        Series(name, colour, [(float(order[key]), greatest[key][i]) for key in order if greatest[key][i] > 0])
        for i, name, colour in kinds
    ]
    return chart(series, "layer", "relative error", log=True, names=list(order))


def _in_model(name: str) -> tuple[int, int, str]:
    """Where a layer, or a site outside layers, stands in the model."""
    if name.isdigit():
        return 1, int(name), name
    if name in FIRST:
        return 0, FIRST.index(name), name
    return 2, LAST.index(name) if name in LAST else len(LAST), name


def _flips_by_step(found: Difference) -> str:
    steps = sorted({op.record.step for op in found.ops})
    series = []
    for kind, colour in (("tie", ORANGE), ("inherited", GREY), ("defect", RED)):
        counts = dict.fromkeys(steps, 0)
        for flip in found.flips:
            counts[flip.step] += flip.verdict == kind
        series.append(Series(kind, colour, [(float(step), float(count)) for step, count in counts.items()], "bars"))
    return chart(series, "step", "flips") if found.flips else "<p>No decision differs.</p>"


def _margins(found: Difference) -> str:
    kept = [(float(m.step), m.floors) for m in found.margins if not m.flipped]
    flipped = [(float(m.step), m.floors) for m in found.margins if m.flipped]
    steps = sorted({float(m.step) for m in found.margins})
    limits = [(float(f.step), f.limit / f.floor) for f in found.flips if f.kind == "argmax" and f.legal and f.floor]
    series = [
        Series("same token", BLUE, kept, "dots"),
        Series("flipped", RED, flipped, "dots"),
        Series("2 floors", GREY, [(step, TIE) for step in steps]),
        Series("limit with legal noise", ORANGE, limits, "dots"),
    ]
    return chart(series, "step", "margin (floors)", log=True) if steps else "<p>nothing to plot</p>"


def _table(heads: Sequence[tuple[str, bool]], rows: Iterable[Sequence[Any]]) -> str:
    """A table; the flag of a column says that it holds numbers."""
    marks = [' class="n"' if is_number else ' class="site"' if head == "site" else "" for head, is_number in heads]
    top = "".join(f"<th{mark}>{html.escape(head)}</th>" for (head, _), mark in zip(heads, marks, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{mark}>{html.escape(str(cell))}</td>" for cell, mark in zip(row, marks, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _flip_table(found: Difference) -> str:
    if not found.flips:
        return "<p>None.</p>"
    heads = (("verdict", False), ("kind", False), ("site", False), ("step", True), ("row", True), ("only A", False),
             ("only B", False), ("margin", True), ("floor", True), ("legal noise", True), ("limit", True),
             ("after record", True))  # fmt: skip
    rows = (
        (f.verdict, f.kind, f.site, f.step, f.row, _ids(f.gone), _ids(f.came), number(f.margin),
         number(f.floor), number(f.legal), *((number(f.limit), "-") if f.cause is None else ("-", f.cause)))
        for f in found.flips[:SHOWN]
    )  # fmt: skip
    rest = len(found.flips) - SHOWN
    return _table(heads, rows) + (f"<p>and {rest} more in results.json</p>" if rest > 0 else "")


def _ids(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids[:6])) + (" …" if len(ids) > 6 else "")


def _op_table(found: Difference) -> str:
    heads = (("op", False), ("site", False), ("step", True), ("record", True), ("B: share of gate", True), ("A", True),
             ("local B", True), ("inherited", True), ("free", True), ("amplification", True))  # fmt: skip
    rows = (
        (op.record.op, op.record.place, op.record.step, op.record.id, number(op.share),
         number(max((leaf.share for leaf in op.one), default=0.0)), number(op.local), number(op.inherited),
         number(op.free), number(op.amplification))
        for op in worst(found)[:SHOWN]
    )  # fmt: skip
    return _table(heads, rows)

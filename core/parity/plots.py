"""Plots as inline SVG: points, lines and bars, enough for a report and nothing else."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 45, 20, 60  # half a label fits beside the last tick
TICKS = 6
WIDEST_BAR = 60.0


@dataclass(frozen=True)
class Series:
    """One kind of mark.

    Args:
        name: for the legend.
        colour: a CSS colour.
        points: (x, y).
        kind: "line" (with dots), "dots" or "bars" (stacked in the order of the series).
    """

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    kind: str = "line"


class _Scale:
    """Maps numbers to pixels, on a linear or a logarithmic axis; what has no logarithm lies on the lower edge."""

    def __init__(self, values: Sequence[float], start: float, stop: float, log: bool, whole: bool = False) -> None:
        usable = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
        low, high = (min(usable), max(usable)) if usable else (0.1, 1.0) if log else (0.0, 1.0)
        if log:
            low, high = float(math.floor(math.log10(low))), float(math.ceil(math.log10(high)))
        self.low, self.high = (low, high) if high > low else (low - (0 if whole else 1), high + 1)
        self.start, self.stop, self.log, self.whole = start, stop, log, whole

    def __call__(self, value: float) -> float:
        if self.log:
            value = math.log10(value) if value > 0 else -math.inf
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Pixels and labels."""
        span = self.high - self.low
        step = max(1.0, math.ceil(span / TICKS)) if self.log or self.whole else span / TICKS
        found = []
        for i in range(int(span / step + 1e-9) + 1):
            value = self.low + i * step
            label = f"1e{value:.0f}" if self.log else f"{value:.0f}" if self.whole else f"{value:.3g}"
            found.append((self(10.0**value if self.log else value), label))
        return found


def chart(series: Sequence[Series], x_label: str, y_label: str, log: bool = False, names: Sequence[str] = ()) -> str:
    """An SVG of all series on shared axes, in a block that scrolls where the page is narrow.

    Args:
        log: a logarithmic y axis.
        names: labels of the integers 0, 1, ... on the x axis instead of the numbers.
    """
    points = [point for one in series for point in one.points]
    if not points:
        return "<p>nothing to plot</p>"
    stacked = _stack(series)
    tops = [top for one in stacked.values() for _, _, top in one] + ([] if log or not stacked else [0.0])
    lines = [y for one in series if one.kind != "bars" for _, y in one.points]
    half = 0.5 if stacked else 0.0
    xs = [x + sign * half for x, _ in points for sign in (-1, 1)]
    x_of = _Scale(xs, LEFT, WIDTH - RIGHT, False, not half)
    y_of = _Scale([*lines, *tops], HEIGHT - BOTTOM, TOP, log, bool(stacked))
    parts = [_axes(x_of, y_of, x_label, y_label, names, bool(half), sorted({x for x, _ in points}))]
    for number, one in enumerate(series):
        parts.append(_bars(one, stacked[number], x_of, y_of) if one.kind == "bars" else _marks(one, x_of, y_of))
    legend = "".join(
        f'<tspan fill="{one.colour}" font-weight="bold">&#9632; {html.escape(one.name)}&#160;&#160;</tspan>'
        for one in series
    )
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 8}" font-size="12">{legend}</text>')
    label = html.escape(f"{y_label} by {x_label}", quote=True)
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    return f'<div class="wide">{svg}</div>'


def _stack(series: Sequence[Series]) -> dict[int, list[tuple[float, float, float]]]:
    """By number of each bar series: (x, bottom, top)."""
    heights: dict[float, float] = {}
    found = {}
    for number, one in enumerate(series):
        if one.kind == "bars":
            found[number] = [(x, heights.get(x, 0.0), heights.get(x, 0.0) + y) for x, y in one.points]
            heights |= {x: top for x, _, top in found[number]}
    return found


def _axes(
    x_of: _Scale, y_of: _Scale, x_label: str, y_label: str, names: Sequence[str], bars: bool, xs: Sequence[float]
) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#444"/>']
    for y, label in y_of.ticks():
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" font-size="11">{label}</text>')
    if names or bars:
        every = max(1, math.ceil(len(xs) / 16))
        shown = [(x_of(x), names[int(x)] if names else f"{x:.0f}") for x in xs[::every]]
    else:
        shown = x_of.ticks()
    for x, label in shown:
        cut = html.escape(label if len(label) <= 9 else label[:8] + "…")
        parts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle" font-size="11">{cut}</text>')
    middle = (TOP + bottom) / 2
    turned = f'transform="rotate(-90 14 {middle:.1f})"'
    parts.append(
        f'<text x="14" y="{middle:.1f}" text-anchor="middle" font-size="12" {turned}>{html.escape(y_label)}</text>'
    )
    centre = (LEFT + right) / 2
    parts.append(
        f'<text x="{centre:.1f}" y="{bottom + 32}" text-anchor="middle" font-size="12">{html.escape(x_label)}</text>'
    )
    return "".join(parts)


def _marks(one: Series, x_of: _Scale, y_of: _Scale) -> str:
    places = [(x_of(x), y_of(y)) for x, y in one.points]
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{one.colour}"/>' for x, y in places)
    if one.kind == "dots" or len(places) < 2:
        return dots
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return f'<path d="{path}" fill="none" stroke="{one.colour}" stroke-width="1.5"/>{dots}'


def _bars(one: Series, places: Sequence[tuple[float, float, float]], x_of: _Scale, y_of: _Scale) -> str:
    parts = []
    for x, low, high in places:
        width, top, bottom = min(x_of(x + 0.4) - x_of(x - 0.4), WIDEST_BAR), y_of(high), y_of(low)
        size = f'width="{width:.1f}" height="{bottom - top:.1f}"'
        parts.append(f'<rect x="{x_of(x) - width / 2:.1f}" y="{top:.1f}" {size} fill="{one.colour}"/>')
    return "".join(parts)

"""The page stands alone, is well formed, keeps every mark inside its plot, and renders in a browser."""

from __future__ import annotations

import html.parser
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tandem.parity import report
from tandem.parity.decisions import Flip
from tandem.parity.diff import Difference, Margin, OpDiff
from tandem.parity.headers import HeaderMismatch
from tandem.parity.measure import LeafError
from tandem.parity.plots import HEIGHT, WIDTH, Series, chart
from tandem.parity.records import Record
from tandem.parity.statistics import model_level
from tandem.parity.verdict import Verdict, verdict

VOID = {"meta", "br"}
BROWSER = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)


def leaf(value: float) -> LeafError:
    """An error of so many floors."""
    rows = np.array([0.0, value])
    return LeafError("y", "floors", 4.0, rows, value / 2, 1e-3, value * 1e-4, (1, 7), value > 4.0)


def made(layers: int = 12) -> tuple[Difference, Verdict]:
    """A comparison with everything in it: long names, infinities, all kinds of flips."""
    long = "a-very-long-name-without-a-single-blank-" * 6
    found = Difference("free", ("cpu", f"{long}<b>&"), [HeaderMismatch("flags", long, "<script>", False)])
    for number in range(2 * layers):
        step, layer = divmod(number, layers)
        place = Record(number, step, number, "linear", f"layers.{layer}.{long}", None if layer == 0 else layer, 2)
        value = 9.0 if number == 7 else 0.1 + number % 3
        free = float("inf") if number == 9 else 1e-3 * (number + 1)
        found.ops.append(OpDiff(place, [leaf(0.5)], [leaf(value)], 1e-4 * number, ("x",), free, 3.0, False))
    for number, kind in enumerate(("tie", "inherited", "defect")):
        ids = tuple(range(9))
        found.flips.append(
            Flip("entries", 8 + number, number % 2, 3, long, 1, ids, ids, np.inf, 1.0, kind, None if number else 7)
        )
    found.margins = [Margin(step, 0, 10.0 ** (step - 2), step == 1) for step in range(4)] + [Margin(0, 1, 0.0, True)]
    found.decided = {"entries": (40, 3)}
    found.model = model_level(np.eye(4), np.eye(4) * 2)
    found.divergent, found.steps = 1, 2
    return found, verdict(found, Path(f"/tmp/{long}"))


class Structure(html.parser.HTMLParser):
    """Checks that tags nest, and keeps attributes that fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "data", "action")]
        if tag in ("script", "link", "iframe", "img", "object"):
            self.fetched.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        return

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_fetches_nothing() -> None:
    page = report.page(*made())
    structure = Structure()
    structure.feed(page)
    assert structure.open == [] and structure.fetched == []
    assert "url(" not in page and "http" not in page and "@import" not in page
    assert "<b>&" not in page and "&lt;script&gt;" in page  # names are text
    for title in ("Error by layer", "Decision flips by step", "Logit margins", "Model level", "Flips", "Left out"):
        assert f"<h2>{title}</h2>" in page


def boxes(svg: str) -> list[tuple[float, float]]:
    """All points of a plot's marks, axes and texts."""
    root = ElementTree.fromstring(svg)
    found: list[tuple[float, float]] = []
    for node in root.iter():
        get = node.attrib.get
        if node.tag == "circle":
            found.append((float(get("cx", "")), float(get("cy", ""))))
        elif node.tag == "rect":
            x, y = float(get("x", "")), float(get("y", ""))
            found += [(x, y), (x + float(get("width", "")), y + float(get("height", "")))]
        elif node.tag == "text":
            found.append((float(get("x", "")), float(get("y", ""))))
        elif node.tag == "path" and "H" not in get("d", ""):
            found += [(float(x), float(y)) for x, y in re.findall(r"([-\d.naif]+) ([-\d.naif]+)", get("d", ""))]
    return found


def test_every_mark_lies_inside_its_plot() -> None:
    plots = re.findall(r"<svg.*?</svg>", report.page(*made()), flags=re.DOTALL)
    assert len(plots) == 3
    for svg in plots:
        points = boxes(svg)
        assert len(points) > 10
        assert all(np.isfinite(p).all() and 0 <= p[0] <= WIDTH and 0 <= p[1] <= HEIGHT for p in points)


def test_a_plot_puts_numbers_where_they_belong() -> None:
    svg = chart([Series("s", "#000", [(0.0, 1e-4), (1.0, 1e-2), (2.0, 1.0)], "dots")], "x", "y", log=True)
    circles = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in ElementTree.fromstring(svg).iter("circle")]
    (x0, y0), (x1, y1), (x2, y2) = circles
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert y1 == pytest.approx((y0 + y2) / 2, abs=0.1)  # decades are equally far
    assert y0 > y2  # up is more
    bars = [Series("a", "#000", [(0.0, 2.0)], "bars"), Series("b", "#111", [(0.0, 1.0)], "bars")]
    low, high = (r.attrib for r in ElementTree.fromstring(chart(bars, "x", "y")).iter("rect"))
    assert float(high["y"]) + float(high["height"]) == pytest.approx(float(low["y"]), abs=0.1)
    assert float(low["height"]) == pytest.approx(2 * float(high["height"]), abs=0.2)
    assert chart([Series("s", "#000", [])], "x", "y") == "<p>nothing to plot</p>"


def test_layers_stand_in_the_order_of_the_model() -> None:
    """Whatever the order of the calls: what comes before the layers, they by number, what comes after."""
    found = Difference("free", ("a", "b"), [])
    for number, (site, layer) in enumerate((("sampler", None), ("hc", 10), ("embed", None), ("hc", 2), ("head", None))):
        place = Record(number, 0, number, "linear", site, layer, 2)
        found.ops.append(OpDiff(place, [leaf(0.5)], [leaf(0.5)], 0.1, (), 0.1, None, False))
    page = report.page(found, verdict(found, Path("t")))
    svg = page[page.index("<svg") : page.index("</svg>")]
    names = re.findall(r'<text x="([\d.]+)"[^>]*>([a-z]+|10|2)</text>', svg)
    ticks = [(float(x), name) for x, name in names if name != "layer"]
    assert [name for _, name in sorted(ticks)] == ["embed", "2", "10", "head", "sampler"]
    assert max(x for x, _ in ticks) + 9 * 7 / 2 < WIDTH, "nine characters of seven pixels fit beside the last tick"
    assert "layers.10.hc" in page and "layers.2.hc" in page


def test_a_local_comparison_says_nothing_of_a_run() -> None:
    found, _ = made()
    found.mode = "local"
    outcome = verdict(found, Path("t"))
    for text in (report.summary(found, outcome), report.page(found, outcome)):
        assert "KL(A||B)" not in text and "top-1" not in text
        assert report.LOCAL in text.replace("&#x27;", "'")
    found.ops, found.flips = [op for op in found.ops if op.outside is None], []
    assert verdict(found, Path("t")).headline() == "PASS: every op is within its class on A's inputs"


def test_an_empty_comparison_has_a_page() -> None:
    found = Difference("local", ("a", "b"), [])
    assert "PASS" in report.page(found, verdict(found, Path("t")))


def contrast(colour: str) -> float:
    """Ratio of luminances to white."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def test_colours_can_be_read_on_white() -> None:
    for colour in (report.BLUE, report.ORANGE, report.GREY, report.RED, report.GREEN):
        assert contrast(colour) >= 4.5


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser on this machine")
@pytest.mark.parametrize("width", [400, 1200])
def test_the_page_renders_without_overflow(width: int, tmp_path: Path) -> None:
    """A script asks the browser for widths; names without a blank must not push the page wide."""
    probe = """<script>
    const whole = document.documentElement, box = node => node.getBoundingClientRect();
    const plots = [...document.querySelectorAll('svg')], texts = [...document.querySelectorAll('svg text')];
    const out = text => box(text).left < box(text.ownerSVGElement).left - 1
        || box(text).right > box(text.ownerSVGElement).right + 1;
    document.title = JSON.stringify({over: whole.scrollWidth - whole.clientWidth,
        plots: plots.map(plot => box(plot).height > 50), texts: texts.filter(out).length});
    </script>"""
    page = tmp_path / "page.html"
    page.write_text(report.page(*made()).replace("</body>", f"{probe}</body>"), encoding="utf-8")
    words = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    dom = subprocess.run([*words, page.as_uri()], capture_output=True, text=True, timeout=120, check=True).stdout
    assert '<title>{"over":0,"plots":[true,true,true],"texts":0}</title>' in dom

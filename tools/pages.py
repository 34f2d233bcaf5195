"""Pages of which parts are generated."""

from __future__ import annotations

from pathlib import Path


def replace(page: Path, mark: str, body: str) -> None:
    """Write a generated part of a page between its marks."""
    text = page.read_text(encoding="utf-8")
    start, end = f"<!-- generated: {mark} -->\n", f"<!-- end: {mark} -->"
    before, _, rest = text.partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no marks for '{mark}'")
    page.write_text(f"{before}{start}{body}{end}{after}", encoding="utf-8")

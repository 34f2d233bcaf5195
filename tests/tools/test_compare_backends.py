"""The page that sets backends side by side: current, and made of what lies on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import compare_backends
from tools.compare_backends import Column, launched, lines_of, owner, page


def test_the_page_of_backends_is_current(repo_root: Path) -> None:
    text = (repo_root / "docs" / "BACKENDS.md").read_text(encoding="utf-8")
    assert page() in text, "run python -m tools.compare_backends --write docs/BACKENDS.md"


def test_a_file_belongs_to_the_op_with_the_longest_name() -> None:
    assert owner("index_scores") == "index_scores" and owner("index_scores_at") == "index_scores_at"
    assert owner("aux_take") == "aux.take" and owner("spec_verify_mass") == "spec_verify"
    assert owner("_rows") is None and owner("grouped_large") is None


def test_launchers_say_what_they_bring(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text(
        '"""Two ops."""\n\nOPS: dict[str, object] = {"rope": 1,\n    "aux.take": 2}\nOTHER = {"embed": 3}\n'
    )
    assert launched(path) == ["rope", "aux.take"] and lines_of(path) == 4
    path.write_text("X = 1\n")
    assert launched(path) == []


def test_cells_are_those_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_backends, "ROOT", tmp_path)
    package, sources = tmp_path / "backends" / "ascend", tmp_path / "csrc" / "ascend"
    (package / "kernels").mkdir(parents=True)
    sources.mkdir(parents=True)
    (package / "kernels" / "rope.py").write_text('OPS: dict[str, object] = {"rope": None}\n')
    (sources / "rope.cpp").write_text("__simt_vf__ void rotate();\n\n__vector__ void rope();\n")
    (sources / "_pairs.h").write_text("// pairs\n")
    column = Column("ascend")
    assert (column.kind("rope"), column.lines("rope"), column.lines("embed")) == ("no table", "1 + 2", "-")
    assert [path.name for path in column.sources.shared] == ["_pairs.h"]
    table = '[ops."rope"]\nimpl = "native"\nallows = { "w" = ["bf16"], "layout" = ["canonical"] }\n'
    (package / "capabilities.toml").write_text(table + '[ops."embed"]\nimpl = "composite"\n')
    column = Column("ascend")
    assert (column.kind("rope"), column.formats("rope")) == ("fused, SIMT", "w: bf16")
    assert (column.kind("embed"), column.formats("embed"), column.kind("sample")) == ("composite", "", "-")

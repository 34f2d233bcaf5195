"""The tables of docs/CUDA_LIBRARY.md, and the tool that builds the library where its own tools are missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import build_cuda, cuda_library


def test_tables_are_those_of_the_record() -> None:
    assert cuda_library.main(["--check"]) == 0


def test_record_keeps_to_the_budget() -> None:
    """At most eight heavy files, 25 minutes on two cores, no spilt registers."""
    facts = json.loads(cuda_library.FACTS.read_text(encoding="utf-8"))
    heavy = [file for file in facts["files"] if file["processor_seconds"] > 30]
    assert len(heavy) <= 8 and sum(file["processor_seconds"] for file in facts["files"]) < 25 * 60
    assert [kernel["name"] for kernel in facts["kernels"] if kernel["spilled"]] == []
    assert {file["source"] for file in facts["files"]} == {path.name for path in build_cuda.sources()}


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(build_cuda.shutil, "which", lambda name: None)
    monkeypatch.setattr(build_cuda, "_installed_nvcc", lambda: None)
    assert build_cuda.main([]) == 0
    assert "skipped: no nvcc" in capsys.readouterr().out
    assert build_cuda.main(["--require"]) == 1


def test_objects_depend_on_what_they_include(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments and files that are not included change nothing; code in an included file does."""
    (tmp_path / "a.cu").write_text('#include "b.cuh"\nint a;\n')
    (tmp_path / "b.cuh").write_text("int b;\n")
    (tmp_path / "c.cuh").write_text("int c;\n")
    tools = build_cuda.Toolchain(Path("nvcc"), "1", ())
    monkeypatch.setattr(build_cuda, "SOURCES", tmp_path)
    before = build_cuda._key(tmp_path / "a.cu", tools)
    (tmp_path / "b.cuh").write_text("// why\nint b;  /* and\n how */\n")
    (tmp_path / "c.cuh").write_text("int other;\n")
    assert build_cuda._key(tmp_path / "a.cu", tools) == before
    (tmp_path / "b.cuh").write_text("long b;\n")
    assert build_cuda._key(tmp_path / "a.cu", tools) != before

"""The build of the Ascend library: what it is made of, what is made anew, and how it says that it cannot be made."""

from __future__ import annotations

import os
import re
from pathlib import Path

import cffi
import pytest

from tools import build_ascend


def test_declarations_are_read_by_cffi() -> None:
    """All entries at once, each of the form that the caller checks calls against."""
    text = build_ascend.declarations()
    cffi.FFI().cdef(text)
    entries = re.findall(r"int32_t tandem_ascend_(\w+)\(const tandem_ascend_device \*device, void \*stream", text)
    assert "rms_norm" in entries and len(set(entries)) == len(entries)


def test_every_kernel_file_has_a_header() -> None:
    for source in build_ascend.kernel_sources():
        assert source.with_suffix(".h").exists(), source.name


def test_without_bisheng_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert build_ascend.main([]) == 0 and build_ascend.main(["--require"]) == 1
    assert capsys.readouterr().out.count("skipped: no bisheng on PATH; it comes with CANN") == 2


def test_the_device_library_is_one_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a bisheng that writes down what it was told."""
    fake = tmp_path / "bin" / "bisheng"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$@" > "$TOLD"\nfor last; do :; done\ntouch "$last"\n', encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.setattr(build_ascend, "DEVICE_BUILD", tmp_path)
    monkeypatch.setattr(build_ascend, "DEVICE_LIBRARY", tmp_path / "libtandem_ascend.so")
    assert build_ascend.build_device().exists()
    words = (tmp_path / "told").read_text(encoding="utf-8").split()
    assert {"-x", "asc", "--npu-arch=dav-3510", "-std=c++20", "-shared", "-ffp-contract=off"} <= set(words)
    assert "--enable-simt" not in words  # kernels of registers and threads are not compiled as kernels of threads alone
    files = {Path(word).name for word in words if word.endswith(".cpp")}
    assert {"rms_norm.cpp", "api.cpp", "declarations.cpp"} <= files
    assert not any("emulation" in word for word in words)


def test_only_what_changed_is_compiled(tmp_path: Path) -> None:
    """A source is stale without its object, after a header that it includes changes, and for another command."""
    header, source, target = tmp_path / "part.h", tmp_path / "whole.cpp", tmp_path / "whole.o"
    header.write_text("#pragma once\n", encoding="utf-8")
    source.write_text('#include "part.h"\nint whole() { return 3; }\n', encoding="utf-8")
    for made in (header, source):
        os.utime(made, ns=(1, 1))
    note = target.with_suffix(".cmd")
    assert build_ascend._compile(source, target) is None and target.exists()
    command = note.read_text(encoding="utf-8")
    assert not build_ascend._stale(source, target, command)
    assert build_ascend._stale(source, target, "another")
    built = target.stat().st_mtime_ns
    os.utime(header, ns=(built, built))
    assert build_ascend._stale(source, target, command)
    source.write_text("int whole() { return; }\n", encoding="utf-8")
    text = build_ascend._compile(source, target)
    assert text is not None and "error" in text and not note.read_text(encoding="utf-8")


def test_what_is_edited_while_the_compiler_runs_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that takes its time: the source changes after it was read, before the object is there."""
    source, target = tmp_path / "whole.cpp", tmp_path / "whole.o"
    source.write_text("int whole() { return 3; }\n", encoding="utf-8")
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\ntouch {source}\nexec g++ "$@"\n', encoding="utf-8")
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    assert build_ascend._compile(source, target) is None
    assert build_ascend._stale(source, target, target.with_suffix(".cmd").read_text(encoding="utf-8"))

"""``tandem checkpoint``: the handlers, as the command line calls them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tandem.cli.checkpoint import add_parser
from tandem.errors import CheckpointError, ConfigError


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["checkpoint", *arguments])
    code: int = args.handler(args)
    return code


def test_make_and_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "tiny")
    assert run("make-tiny", "--seed", "0", "--out", out) == 0
    assert out in capsys.readouterr().out
    assert run("inspect", out) == 0
    shown = capsys.readouterr().out
    assert "complete (dspark, text, vision; this version runs dspark, text)" in shown and "engram" in shown
    assert run("inspect", out, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["groups"] == ["dspark", "text", "vision"]
    files = sum(file.stat().st_size for file in Path(out).glob("*.safetensors"))
    # files hold the tensors and short headers
    assert files * 0.9 < report["totals"]["nbytes"] < files
    assert run("inventory", "--config", f"{out}/config.json", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["totals"] == report["totals"]
    assert sum(tensor["bytes"] for tensor in listed["tensors"]) == report["totals"]["nbytes"]


def test_inventory_of_the_official_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inventory") == 0
    shown = capsys.readouterr().out
    for text in ("96,085", "510,286,023,000", "551.6B", "196.6B", "7.578B", "15.82B"):
        assert text in shown
    # 40 layers of 384 experts
    line = next(s for s in shown.splitlines() if s.startswith("layers.*.ffn.experts.*.w1.weight"))
    assert line.split()[1:4] == ["2304x2560", "I8", "15,360"]


def test_errors_are_raised_for_the_caller(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        run("inspect", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError):
        run("inventory", "--config", str(tmp_path / "nowhere.json"))
    with pytest.raises(ConfigError):
        run("make-tiny", "--seed", "-1", "--out", str(tmp_path / "x"))

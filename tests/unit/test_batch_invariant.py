"""Batch invariance as a capability: what a table proves, the flag that requires it, and where it is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tandem.backends.cpu.backend import CpuBackend
from tandem.cli.main import main
from tandem.config import load_config
from tandem.contract import standing as module
from tandem.contract.standing import Standing, invariance, require_invariance
from tandem.errors import ConfigError

SMALL = ["--set", "model.max_model_len=64", "--set", "scheduler.max_slots=1", "--set", "cache.block_size=32"]
SHOWN = {"batch_invariant": True}


def shows(monkeypatch: pytest.MonkeyPatch, level: str, table: dict[str, Any], why: str = "run of a day") -> None:
    monkeypatch.setattr(module, "standing", lambda backend: Standing(level, why, table))


@pytest.mark.parametrize(
    ("level", "table", "why"),
    [
        ("unverified", SHOWN, "the package sources changed"),
        ("L2", {"batch_invariant": False}, "the backend does not claim it"),
        ("L1", SHOWN, "it was shown up to level L1, and L2 compares requests in many batches"),
    ],
)
def test_what_is_no_proof(monkeypatch: pytest.MonkeyPatch, level: str, table: dict[str, Any], why: str) -> None:
    shows(monkeypatch, level, table, "the package sources changed")
    assert invariance(CpuBackend) == (False, why)
    with pytest.raises(ConfigError) as caught:
        require_invariance(CpuBackend, "file engine.toml")
    error = caught.value
    assert error.why == why and "backend 'cpu'" in error.where and "file engine.toml" in error.where
    assert "tandem conformance --backend cpu --level L2 --emit capabilities.toml" in error.fix


@pytest.mark.parametrize("level", ["L2", "L3"])
def test_a_full_run_is_one(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    shows(monkeypatch, level, SHOWN)
    assert invariance(CpuBackend) == (True, "run of a day")
    require_invariance(CpuBackend, "argument")


def test_the_flag_refuses_before_a_model_is_loaded(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["generate", "Hi", "--model", str(tiny), "--backend", "cpu", *SMALL, "--max-tokens", "1", "--json"]
    shows(monkeypatch, "unverified", {}, "no conformance run is recorded")
    assert main([*command, "--batch-invariant"]) == 2
    shown = capsys.readouterr()
    error = json.loads(shown.err)
    assert shown.out == "" and error["error"] == "ConfigError" and error["why"] == "no conformance run is recorded"
    assert main(command) == 0
    shows(monkeypatch, "L2", SHOWN)
    assert main([*command, "--batch-invariant"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert len(json.loads(first)["token_ids"]) == len(json.loads(second)["token_ids"]) == 1


def test_the_environment_may_require_it_of_the_backend_that_it_names() -> None:
    env = {"TANDEM_BACKEND": "cpu", "TANDEM_BACKEND_BATCH_INVARIANT": "required"}
    assert load_config(env=env).backend.batch_invariant == "required"
    with pytest.raises(ConfigError, match="any, required"):
        load_config(env={"TANDEM_BACKEND_BATCH_INVARIANT": "yes"})


def test_it_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["backends"]
    assert (entries["cpu"]["batch_invariant"], entries["cpu"]["batch_invariant_why"]) == invariance(CpuBackend)
    assert entries["cuda"]["batch_invariant"] is False
    shows(monkeypatch, "L2", SHOWN)
    assert main(["backends"]) == 0
    assert "  batch-invariant: proved, run of a day\n" in capsys.readouterr().out
    assert main(["backends", "--matrix"]) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[:3]}
    assert set(rows["(batch-invariant)"]) == {"proved"}
    assert main(["doctor"]) == 0  # in a process of its own: what the table beside the CPU shows now
    monkeypatch.undo()
    proved, why = invariance(CpuBackend)
    assert f"batch-invariant: {'proved' if proved else 'unproved'}, {why}" in capsys.readouterr().out

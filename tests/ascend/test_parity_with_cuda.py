"""What emulated CUDA records, emulated Ascend runs on its own results: decisions are the same, or ties."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ascend_emulated

from tandem.contract.environment import BACKEND, EMULATE

pytestmark = pytest.mark.slow


def parity(*words: str) -> dict[str, Any]:
    """A command in a process of its own."""
    environ = {key: value for key, value in os.environ.items() if key != BACKEND}
    environ |= {EMULATE: "1", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-m", "tandem.cli.main", "parity", *words, "--json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_decisions_are_the_same_or_ties(temperature: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    ascend_emulated.build()
    prompts, trace, other = tmp_path / "prompts.txt", tmp_path / "cuda", tmp_path / "ascend"
    prompts.write_text("And it came to pass in the days of the king\n", encoding="utf-8")
    drawn = ("--max-tokens", "6", "--temperature", temperature, "--seed", "3")
    parity("record", "--backend", "cuda", "--prompts", str(prompts), "--out", str(trace), "--budget", "128MB", *drawn)
    replayed = parity("replay", str(trace), "--backend", "ascend", "--mode", "free", "--out", str(other))
    assert replayed["errors"] == 0 and replayed["anchored"] == {"inputs": 0, "entries": 0}
    found = parity("diff", str(trace), str(other))
    assert found["verdict"]["status"] in ("PASS", "TIE") and found["left_out"] == 0
    assert {flip["verdict"] for flip in found["flips"]} <= {"tie", "inherited"}

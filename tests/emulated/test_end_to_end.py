"""The model that comes with Tandem, whole, on the emulated devices beside the CPU backend.

The CPU records a run of some texts, op call by op call.  An emulated device runs the recording on its own results
(every position fed with the recorded tokens), and makes a run of its own; every decision of both (experts, entries,
tokens) is compared, and one that differs must be a tie within the noise of its scores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.emulated import BACKENDS, opened

from tandem.contract.environment import BACKEND, EMULATE

pytestmark = pytest.mark.slow

TEXTS = (
    "In the beginning was the word, and the word was with the king of the land, and he said to the people",
    "Who are you?",
)
DRAWN = 16


def tandem(backend: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    environ = os.environ | {BACKEND: backend, EMULATE: "1"}
    command = [sys.executable, "-m", "tandem.cli.main", *arguments, "--json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CPU's recording; prompts.txt lies beside it."""
    folder = tmp_path_factory.mktemp("parity")
    (folder / "prompts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    record(folder, "cpu")
    return folder


def record(folder: Path, backend: str) -> None:
    out = ("--prompts", str(folder / "prompts.txt"), "--out", str(folder / backend))
    status, _ = tandem(backend, "parity", "record", *out, "--max-tokens", str(DRAWN), "--budget", "256MB")
    assert status == 0


def compare(folder: Path, other: str) -> dict[str, Any]:
    status, found = tandem("cpu", "parity", "diff", str(folder / "cpu"), str(folder / other))
    print(found["verdict"]["headline"], found["verdict"]["notes"])
    assert status == 0, found
    return found


@pytest.mark.parametrize("name", BACKENDS)
def test_fed_with_the_same_tokens_nothing_is_decided_otherwise(recorded: Path, name: str) -> None:
    opened(name)
    replay = ("parity", "replay", str(recorded / "cpu"), "--mode", "free", "--out", str(recorded / f"{name}-free"))
    status, found = tandem(name, *replay)
    assert status == 0, found
    compare(recorded, f"{name}-free")


@pytest.mark.parametrize("name", BACKENDS)
def test_a_run_of_its_own(recorded: Path, name: str) -> None:
    opened(name)
    record(recorded, name)
    header = json.loads((recorded / name / "header.json").read_text(encoding="utf-8"))
    assert "emulated" in json.dumps(header)
    compare(recorded, name)

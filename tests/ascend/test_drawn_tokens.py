"""The same logits, seeds and positions give the same tokens on emulated CUDA and on emulated Ascend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ascend_emulated
from support.drawn_tokens import SEEDS, calls

from tandem.contract.environment import BACKEND, EMULATE

pytestmark = pytest.mark.slow


def drawn(name: str, folder: Path) -> dict[str, list[list[int]]]:
    environ = {key: value for key, value in os.environ.items() if key != BACKEND}
    places = os.pathsep.join(sys.path)
    environ |= {EMULATE: "1", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": places}
    command = [sys.executable, "-m", "support.drawn_tokens", name, str(folder / name)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[int]]] = json.loads((folder / name).read_text(encoding="utf-8"))
    return found


def test_both_backends_draw_the_same_tokens(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    ascend_emulated.build()
    one, two = drawn("cuda", tmp_path), drawn("ascend", tmp_path)
    assert one == two
    tokens = [token for call in one.values() for token in call[0]]
    assert len(one) == len(list(calls())) and len(tokens) > 100 * len(SEEDS)
    assert len(set(tokens)) > 50 and -1 in tokens  # rows that draw nothing are among them

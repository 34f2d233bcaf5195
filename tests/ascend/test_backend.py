"""The emulated Ascend backend as a whole: what it says of itself, beside CUDA's in one process, and in commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from support import ascend_emulated

from tandem.backends.ascend import activations
from tandem.contract.backend import Backend
from tandem.contract.types import CanonicalWeight, QFormat, QTensor, WeightKind

LABEL = "emulated: Ascend C kernels on the host"


def tandem(*arguments: str, backend: str = "ascend") -> subprocess.CompletedProcess[str]:
    ascend_emulated.build()
    hidden = {"CUDA_VISIBLE_DEVICES": "-1", "ASCEND_RT_VISIBLE_DEVICES": ""}
    environ = os.environ | {"TANDEM_BACKEND": backend, "TANDEM_EMULATE": "1"} | hidden
    command = [sys.executable, "-m", "tandem.cli.main", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True)


def test_memory_goes_there_and_back(ascend: Backend) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    held = ascend.from_host(array)
    array[:] = 0
    assert ascend.to_host(held).result().tolist()[2] == [8, 9, 10, 11]
    assert ascend.from_host(np.ones((2, 4), np.float32), held).shape == (2, 4)
    assert (held[1] == 1).all() and held[2, 0] == 8
    assert ascend.empty((2, 3), torch.bfloat16).device == ascend.device == torch.device("cpu")
    assert (ascend.memory().total, ascend.memory().free) == (0, 0)
    ascend.synchronize()
    with pytest.raises(NotImplementedError):
        ascend.capture(lambda: None)
    ascend.close()


def test_layouts_convert_exactly(ascend: Backend) -> None:
    generator = torch.Generator().manual_seed(5)
    codes, scale = (torch.randint(0, 256, (5, n), dtype=torch.uint8, generator=generator) for n in (96, 3))
    own = ascend.from_canonical(QTensor(codes, scale, QFormat.MXFP8, (5, 96)))
    assert own.layout == activations.LAYOUT and own.scale.shape == (5, 4)
    back = ascend.to_canonical(own)
    assert torch.equal(back.data, codes) and torch.equal(back.scale, scale)
    stored = CanonicalWeight(codes, scale[:1], QFormat.FP8_BLOCK32)
    found = ascend.unpack_weight(ascend.pack_weight(WeightKind.LINEAR, stored, (5, 96)))
    assert torch.equal(found.data, codes) and found.scale is not None and torch.equal(found.scale, scale[:1])


def test_the_doctor_shows_the_label() -> None:
    done = tandem("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["backends"]["ascend"]["reason"] == LABEL
    assert found["selected"]["backend"] == "ascend:0" and found["selected"]["why"] == LABEL


def test_both_emulated_backends_open_in_one_process() -> None:
    pytest.importorskip("triton")
    found: dict[str, Any] = json.loads(tandem("backends", "--json").stdout)
    states = {name: entry["state"] for name, entry in found["backends"].items()}
    assert (states["ascend"], states["cuda"], states["cpu"]) == ("opens", "opens", "opens")
    kinds = {name: found["backends"][name]["capabilities"]["verification"] for name in ("ascend", "cuda")}
    assert kinds == {"ascend": "emulated", "cuda": "emulated"}


def test_a_text_is_written_and_says_what_wrote_it() -> None:
    words = ("In the beginning", "--max-tokens", "2", "--draft-tokens", "0", "--temperature", "0")
    done, plain = tandem("generate", *words), tandem("generate", *words, backend="cpu")
    assert done.returncode == plain.returncode == 0, done.stderr
    assert "backend ascend (emulated)]" in done.stderr and done.stdout == plain.stdout


def test_an_op_is_checked_by_the_kit() -> None:
    done = tandem("conformance", "--case", "hc_mean/", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["verification"] == "emulated"
    assert found["results"] and not [r for r in found["results"] if r.get("failure")]


@pytest.mark.slow
def test_a_trace_of_it_says_emulated(tmp_path: Any) -> None:
    (tmp_path / "prompts.txt").write_text("Who are you?\n")
    out = ("--prompts", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "trace"))
    done = tandem("parity", "record", *out, "--max-tokens", "1", "--budget", "64MB", "--json")
    assert done.returncode == 0, done.stderr
    assert LABEL in (tmp_path / "trace" / "header.json").read_text()

"""torch-npu is installed and cannot load: torch itself breaks there, and Tandem says so and runs without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.vendor import SWITCH, environment, tandem, vendor

WORDS = "libhccl.so: cannot open shared object file: No such file or directory"


@pytest.fixture
def unloadable(tmp_path: Path) -> Path:
    """torch-npu as pip leaves it on a machine without CANN."""
    return vendor(tmp_path, f"raise ImportError({WORDS!r})\n", "torch_npu", "2.13.0", "torch_npu = torch_npu:_autoload")


def test_torch_cannot_be_imported_and_the_doctor_says_why(unloadable: Path) -> None:
    plain = [sys.executable, "-c", "import torch"]
    broken = subprocess.run(plain, env=environment(unloadable), capture_output=True, text=True)
    assert broken.returncode == 1 and "Failed to load the backend extension: torch_npu" in broken.stderr
    done = tandem(unloadable, "doctor", "--json")
    found = json.loads(done.stdout)
    (problem,) = found["problems"]
    assert done.returncode == 1 and problem["why"] == f"ImportError: {WORDS}" and f"{SWITCH}=0" in problem["fix"]
    assert problem["where"] == "entry point torch.backends: torch_npu = torch_npu:_autoload of torch-npu 2.13.0"
    assert found["backends"]["ascend"]["facts"]["torch-npu"] == "2.13.0"
    assert f"with {SWITCH}=0 it could: cpu:0" in found["selected"]["why"]


def test_importing_tandem_needs_no_torch(unloadable: Path) -> None:
    code = "import tandem, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(unloadable), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_commands_name_the_switch_and_run_with_it(unloadable: Path, tiny: Path) -> None:
    generate = ("generate", "Once", "--model", str(tiny), "--max-tokens", "1")
    refused = tandem(unloadable, *generate, "--json")
    told = json.loads(refused.stderr)
    assert refused.returncode == 2 and told["why"] == f"ImportError: {WORDS}" and f"{SWITCH}=0" in told["fix"]
    assert tandem(unloadable, *generate, **{SWITCH: "0"}).returncode == 0
    healthy = tandem(unloadable, "doctor", "--json", **{SWITCH: "0"})
    found = json.loads(healthy.stdout)
    assert healthy.returncode == 0 and found["problems"] == [] and not found["autoload"]["enabled"]
    here = next(row for row in found["versions"] if row["backend"] == "ascend" and row["here"])
    assert here["versions"]["torch-npu"] == "2.13.0" and found["backends"]["ascend"]["state"] == "absent"


def test_the_backend_is_probed_without_it(unloadable: Path) -> None:
    """Not even with the switch: probing must not import what breaks."""
    done = tandem(unloadable, "generate", "Once", "--json", TANDEM_BACKEND="ascend", **{SWITCH: "0"})
    told = json.loads(done.stderr)
    assert (done.returncode, told["error"]) == (2, "BackendLoadError")
    assert "there is no Ascend driver" in told["why"] and "torch-npu=2.13.0" in told["why"]

"""*Stub*: torch-npu as it is installed, over a stand-in for the vendor's runtime.  Nothing ran on an NPU.

Opt-in: `pytest -m slow`, in an environment of its own that has torch-npu, with TORCH_DEVICE_BACKEND_AUTOLOAD=0 because
torch cannot be imported with it otherwise.  What the device does with kernels and copies is not shown here; which calls
reach it, in which order, on which stream, and what errors become, is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import acl_stub, ascend_library

from tandem.backends.ascend import native

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(acl_stub.missing()), reason=f"no stub job: {acl_stub.missing()}"),
]
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = acl_stub.build(tmp_path_factory.mktemp("acl_stub"))
    ascend_library.build(made / native.DEVICE, emulated=False)
    return made


def session(folder: Path, libraries: Path | None = None, index: int = 1, **more: str) -> dict[str, Any]:
    paths = os.pathsep.join([str(TESTS), *sys.path])
    found = {"PYTHONPATH": paths, "LD_LIBRARY_PATH": str(libraries or folder), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM")} | found | more
    command = [sys.executable, "-m", "support.acl_stub_session", str(folder), str(index)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return session(folder)


def test_the_device_says_what_it_is(found: dict[str, Any]) -> None:
    facts = found["facts"]
    assert (facts["device"], facts["torch-npu"], facts["cores"]) == ("Ascend950PR_9599", "2.13.0", "36 cube, 72 vector")
    assert facts["verification"] == "run on device"  # of the real library it would be; this test says stub
    assert found["patches"] == []


def test_copies_go_through_the_default_stream_in_order(found: dict[str, Any]) -> None:
    told = found["memory"]
    assert told["device"] == "npu:1" and told["back"] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    up, down = (line.split() for line in told["copies"])
    assert (up[1], up[3], down[1], down[3]) == ("48", "1", "48", "2") and up[5] == down[5]
    assert told["memory"][0] == 4 << 20 and told["wait"][-1] == "wait for device 1"


def test_kernels_get_the_current_stream(found: dict[str, Any]) -> None:
    (first, default), (second, other) = found["streams"]
    assert first == default and second == other and first != second


def test_kernels_run_on_the_device_of_their_arrays(found: dict[str, Any]) -> None:
    assert found["other_device"]["current"] == 0
    assert found["other_device"]["told"][:7] == [72, found["streams"][0][1], 0x3F80, 1, 5, 3, 250]


def test_a_capture_has_a_stream_of_its_own_and_is_replayed_on_the_default_one(found: dict[str, Any]) -> None:
    told = found["capture"]
    default = found["streams"][0][1]
    begin, end = (line for line in told["capture"] if line.startswith("capture"))
    stream = int(begin.split()[4])
    assert begin == f"capture begins on stream {stream} mode 1" and end == f"capture ends on stream {stream}"
    assert told["told"][1] == stream != default, "the kernel was not launched on the stream that captures"
    assert [line for line in told["replay"] if "replay" in line] == [f"replay of graph 7 on stream {default}"] * 2


def test_memory_that_stays_on_the_host_is_mapped(found: dict[str, Any]) -> None:
    told = found["resident"]
    assert told["device"] == "npu:1" and told["same"]
    words = [line.split()[0] for line in told["asked"] if "malloc" in line or "register" in line]
    assert words == ["malloc", "register"]


def test_a_group_of_ranks_is_made(found: dict[str, Any]) -> None:
    told = found["collectives"]
    assert told["calls"] == ["all_reduce float32 [4]"]
    assert told["asked"] == ["join as 0 of 1", "all reduce of 4 in group 9"]


def test_errors(found: dict[str, Any]) -> None:
    refused = found["no_memory"]
    assert refused["empty"]["error"] == refused["resident"]["error"] == "CapacityError"
    assert "out of memory" in refused["empty"]["why"] and "aclrtMallocHost" in refused["resident"]["why"]
    wrong = found["wrong_calls"]
    assert "arrays are on cpu and npu:1" in wrong["host array"]["why"]
    assert wrong["queue"]["error"] == "ConfigError" and "TASK_QUEUE_ENABLE" in wrong["queue"]["where"]


def test_what_cannot_be_opened_is_told(folder: Path, tmp_path: Path) -> None:
    chip = session(folder, ACL_STUB_SOC="Ascend910B1")["error"]
    assert chip["what"] == "Ascend910B1 is no Ascend 950" and chip["where"].startswith("ascend:1")
    index = session(folder, index=2)["error"]
    assert index["error"] == "DeviceIndexError" and "2 devices are visible" in index["what"]
    none = session(folder, libraries=tmp_path)["error"]
    assert none["error"] == "BackendLoadError" and "libascendcl.so cannot be loaded" in none["why"]
    (tmp_path / acl_stub.RUNTIME).symlink_to(folder / acl_stub.RUNTIME)
    some = session(folder, libraries=tmp_path)["error"]
    assert "libhccl.so cannot be loaded: libhccl.so: cannot open shared object file" in some["why"]
    (tmp_path / "empty").mkdir()
    bare = tmp_path / "bare"
    bare.mkdir()
    kernels = session(bare, libraries=folder)["error"]
    assert "kernels of backend 'ascend'" in kernels["what"] and "make ascend" in kernels["fix"]

"""Every refusal of the CUDA backend, from facts that are made up: no machine here has a device."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.backends.cuda import host, probing
from tandem.backends.cuda.backend import CudaBackend
from tandem.backends.cuda.host import Host
from tandem.backends.cuda.probing import Gpu, check_driver, check_emulation, check_gpu, check_host
from tandem.errors import BackendLoadError, ConfigError, DeviceIndexError, TandemError, VersionError

FACTS = {"/dev/nvidiactl": "present", "triton": "3.9.0", "CUDA_VISIBLE_DEVICES": "unset"}
GOOD = Host(FACTS, driver=True, gpus=2, hidden=False, triton=True, toolkit="13.0")
B200 = Gpu(0, 2, "NVIDIA B200", (10, 0), (13, 0), "13.0", ("sm_90", "sm_100", "compute_120"))


def told(error: TandemError) -> str:
    assert all(error.to_dict().values())
    return f"{error.what} | {error.where} | {error.why} | {error.fix}"


def test_a_complete_machine_is_not_refused() -> None:
    check_host(GOOD, 0)
    check_driver(B200)
    check_gpu(B200)
    check_gpu(replace(B200, name="NVIDIA H200", capability=(9, 0)))
    check_gpu(replace(B200, capability=(10, 3)))  # code for 10.0 runs on 10.3


@pytest.mark.parametrize(
    "change, kind, words",
    [
        ({"driver": False, "gpus": 0}, BackendLoadError, ["no NVIDIA driver", "/dev/nvidiactl", "install the driver"]),
        ({"gpus": 0}, BackendLoadError, ["no GPU", "/dev/nvidia0"]),
        ({"hidden": True}, BackendLoadError, ["leaves no GPU", "unset CUDA_VISIBLE_DEVICES"]),
        ({"triton": False}, BackendLoadError, ["triton is not installed", "tandem-infer[cuda]"]),
        ({"toolkit": "none"}, VersionError, ["torch was built without CUDA"]),
    ],
    ids=["no-driver", "no-gpu", "hidden", "no-triton", "cpu-torch"],
)
def test_what_a_machine_lacks_is_named(change: dict[str, object], kind: type[TandemError], words: list[str]) -> None:
    with pytest.raises(kind) as caught:
        check_host(replace(GOOD, **change), 1)
    text = told(caught.value)
    assert all(word in text for word in [*words, "cuda:1", "Checked: /dev/nvidiactl=present", "No fallback was made"])


def test_an_old_gpu_is_refused_by_name() -> None:
    for name, capability in (("NVIDIA A100-SXM4-80GB", (8, 0)), ("NVIDIA L40S", (8, 9)), ("Tesla V100", (7, 0))):
        with pytest.raises(BackendLoadError) as caught:
            check_gpu(replace(B200, name=name, capability=capability))
        text = told(caught.value)
        assert name in text and f"{capability[0]}.{capability[1]}" in text and "9.0 or later: fp8" in text


def test_versions_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(VersionError) as caught:
        check_driver(replace(B200, driver=(12, 8), count=0, name=""))
    assert "CUDA 13.0" in told(caught.value) and "up to CUDA 12.8" in told(caught.value)
    with pytest.raises(VersionError) as caught:
        check_gpu(replace(B200, architectures=("sm_80", "sm_90a", "sm_120")))
    assert "no code for NVIDIA B200" in told(caught.value) and "sm_80, sm_90a, sm_120" in told(caught.value)


def test_emulation_beside_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_EMULATE", "1")
    monkeypatch.setattr(host, "look", lambda: GOOD)
    assert not CudaBackend.probe().present and "beside a device" in CudaBackend.probe().reason
    with pytest.raises(BackendLoadError) as caught:
        CudaBackend.open(0, {})
    text = told(caught.value)
    assert "not emulated beside a real one" in text and "CUDA_VISIBLE_DEVICES=-1" in text and "2 GPU files" in text
    check_emulation(replace(GOOD, hidden=True))


def test_the_emulated_device_is_only_taken_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_EMULATE", "1")
    monkeypatch.setattr(host, "look", lambda: replace(GOOD, driver=False, gpus=0))
    probe = CudaBackend.probe()
    assert probe.present and not probe.accelerator and probe.reason.startswith("emulated: ")
    with pytest.raises(DeviceIndexError):
        probing.open_runtime(1)
    monkeypatch.setenv("TANDEM_EMULATE", "yes")
    wrong = CudaBackend.probe()
    assert not wrong.present and "neither 0 nor 1" in wrong.reason and "Fix: " in wrong.reason
    with pytest.raises(ConfigError, match="neither 0 nor 1"):
        probing.open_runtime(0)


def test_what_is_found_comes_from_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    found = host.look()
    assert found.hidden and not found.device and found.facts["CUDA_VISIBLE_DEVICES"] == "-1"
    assert {"driver", "triton", "GPU files", "CUDA of torch"} <= set(found.facts)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert not host.look().hidden


def test_importing_and_probing_load_no_vendor_library(repo_root: Path) -> None:
    code = (
        "import sys; from tandem.backends.cuda.backend import BACKEND; BACKEND.probe(); "
        "print([name for name in sys.modules if name.split('.')[0] in ('triton', 'cuda')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=repo_root)
    assert done.stdout == "[]\n"

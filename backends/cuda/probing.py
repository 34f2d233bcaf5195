"""What is found of driver, device and libraries, and the errors where something is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.backends.cuda.emulation import LABEL, emulating
from tandem.contract.absent import AbsentBackend
from tandem.contract.capabilities import Probe
from tandem.contract.devices import check_index
from tandem.contract.environment import BACKEND
from tandem.contract.probing import checked
from tandem.errors import BackendLoadError

if TYPE_CHECKING:
    from tandem.backends.cuda.runtime import Runtime


class _Facts(AbsentBackend):
    name = "cuda"
    _device_file = "/dev/nvidiactl"
    _package = "triton"
    _version_files = {"driver": "/sys/module/nvidia/version"}
    _variables = ("CUDA_VISIBLE_DEVICES",)
    _misnamed = {"CUDA_VISIBLE_DEVICE": "CUDA_VISIBLE_DEVICES", "GPU_VISIBLE_DEVICES": "CUDA_VISIBLE_DEVICES"}


def probe() -> Probe:
    """Look for files, packages and variables; load nothing."""
    facts = dict(_Facts.probe().facts)
    if emulating():
        return Probe(True, LABEL, facts, accelerator=False)
    return Probe(False, f"{_Facts._device_file} is {facts[_Facts._device_file]}", facts)


def open_runtime(device_id: int) -> Runtime:
    """The runtime of a device."""
    if emulating():
        from tandem.backends.cuda.runtime import EmulatedRuntime

        check_index("cuda", device_id, 1, "the emulated device")
        return EmulatedRuntime()
    raise BackendLoadError(
        "backend 'cuda' was requested but cannot be opened",
        where=f"cuda:{device_id}",
        why=f"{probe().reason}. {checked(probe())}",
        fix=f"set {BACKEND}=cpu to run the reference. No fallback was made",
    )

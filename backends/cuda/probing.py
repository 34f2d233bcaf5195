"""Whether the backend can be opened, and the errors where it cannot.

What is asked of the machine comes in as values (`Host`, `Gpu`), so every refusal can be tested without a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.accelerator.emulation import beside_a_device, emulating
from tandem.accelerator.refusals import NO_FALLBACK, cannot_open
from tandem.backends.cuda import host
from tandem.backends.cuda.emulation import LABEL
from tandem.backends.cuda.host import VISIBLE, Host
from tandem.contract.capabilities import Probe
from tandem.contract.devices import check_index
from tandem.contract.environment import EMULATE
from tandem.errors import BackendLoadError, ConfigError, VersionError

if TYPE_CHECKING:
    from tandem.backends.cuda.runtime import GpuRuntime

OLDEST = (9, 0)


@dataclass(frozen=True, slots=True)
class Gpu:
    """What the CUDA libraries say of a device.

    Args:
        index: logical, below ``count``.
        count: devices that are visible.
        name: of the product.
        capability: compute capability.
        driver: newest CUDA version that the driver runs, (13, 0).
        toolkit: CUDA version that torch was built with.
        architectures: that torch has code for, as ``sm_100``.
    """

    index: int
    count: int
    name: str
    capability: tuple[int, int]
    driver: tuple[int, int]
    toolkit: str
    architectures: tuple[str, ...]


def probe() -> Probe:
    """Look for files, packages and variables; load nothing."""
    found = host.look()
    try:
        emulated = emulating()
    except ConfigError as error:
        return Probe(False, str(error), found.facts)
    if emulated:
        beside = found.device
        reason = f"{EMULATE}=1 beside a device, which is refused" if beside else LABEL
        return Probe(not beside, reason, found.facts, accelerator=False)
    missing = _missing(found)
    if missing is None:
        return Probe(True, f"{found.gpus} GPU files; what they are is known once one is opened", found.facts)
    return Probe(False, missing[0], found.facts)


def open_runtime(index: int) -> GpuRuntime:
    """The runtime of a device, or the emulated one.

    Raises:
        BackendLoadError: something is missing, the device is too old, or emulation was asked for beside a device.
        VersionError: driver, torch and device do not go together.
        DeviceIndexError: there is no such device.
    """
    found = host.look()
    if emulating():
        from tandem.backends.cuda.runtime import EmulatedRuntime

        check_emulation(found)
        check_index("cuda", index, 1, "the emulated device")
        return EmulatedRuntime()
    check_host(found, index)
    from tandem.backends.cuda import device

    gpu = device.ask(index)
    check_driver(gpu)
    check_index("cuda", index, gpu.count, f"{VISIBLE}={found.facts[VISIBLE]}")
    check_gpu(gpu)
    return device.DeviceRuntime(gpu)


def _missing(found: Host) -> tuple[str, str] | None:
    """The first thing that is not there, and what to do about it."""
    if not found.driver:
        return f"there is no NVIDIA driver: {host.CONTROL} is absent", "install the driver"
    if found.hidden:
        return f"{VISIBLE}={found.facts[VISIBLE]} leaves no GPU", f"unset {VISIBLE}, or name a GPU in it"
    if not found.gpus:
        return "the driver is there, but no GPU: no file /dev/nvidia0", "let this machine or container see its GPU"
    if not found.triton:
        return "the package triton is not installed", "pip install 'tandem-infer[cuda]'"
    if found.toolkit == "none":
        return "torch was built without CUDA", "install a torch built for CUDA, as PyPI's for Linux"
    return None


def check_host(found: Host, index: int) -> None:
    """Refuse to load libraries where something that they need is not there."""
    missing = _missing(found)
    if missing is None:
        return
    why, fix = missing
    kind = VersionError if found.device and found.triton else BackendLoadError
    raise cannot_open(f"cuda:{index}", why, fix, found.facts, kind)


def check_emulation(found: Host) -> None:
    """Refuse to emulate a device beside a real one: its results would be taken for the device's."""
    if found.device:
        raise beside_a_device(f"{found.gpus} GPU files and a driver", f"{VISIBLE}=-1")


def check_driver(gpu: Gpu) -> None:
    """Refuse a driver that torch's CUDA does not run on: torch sees no device there, and does not say why."""
    if gpu.driver[0] < int(gpu.toolkit.partition(".")[0]):
        raise VersionError(
            "the driver is too old for torch",
            where=f"cuda:{gpu.index}",
            why=f"torch was built with CUDA {gpu.toolkit}, and the driver runs up to CUDA {version(gpu.driver)}",
            fix="install a newer driver, or a torch built with an older CUDA",
        )


def check_gpu(gpu: Gpu) -> None:
    """Refuse a device that the kernels were not written for, or that torch has no code for."""
    where = f"cuda:{gpu.index}, {gpu.name}, compute capability {version(gpu.capability)}"
    if gpu.capability < OLDEST:
        raise BackendLoadError(
            f"{gpu.name} is too old",
            where=where,
            why=f"the kernels need compute capability {version(OLDEST)} or later: fp8 conversions and asynchronous "
            "bulk copies do not exist before",
            fix=f"use an H100, H200, B200 or GB200, or {NO_FALLBACK}",
        )
    major = [name for name in gpu.architectures if _runs_on(name, gpu.capability)]
    if not major:
        raise VersionError(
            f"torch has no code for {gpu.name}",
            where=where,
            why=f"it was built for {', '.join(gpu.architectures)}",
            fix="install a torch that was built for this GPU",
        )


def _runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    """Code of ``sm_XY`` runs on the same major from minor Y on; ``compute_XY`` is compiled for any later device."""
    kind, _, digits = architecture.partition("_")
    number = digits.rstrip("af")
    if not number.isdigit():
        return False
    built = (int(number[:-1]), int(number[-1]))
    if kind == "compute":
        return built <= capability
    return built[0] == capability[0] and built <= capability


def version(pair: tuple[int, int]) -> str:
    """``10.0``."""
    return f"{pair[0]}.{pair[1]}"

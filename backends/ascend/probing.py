"""Whether the backend can be opened, and the errors where it cannot.

What is asked of the machine comes in as values (`Host`, `Npu`), so every refusal can be tested without a device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.accelerator.emulation import beside_a_device, emulating
from tandem.accelerator.refusals import NO_FALLBACK, cannot_open
from tandem.backends.ascend import host
from tandem.backends.ascend.host import NOT_INSTALLED, VISIBLE, Host
from tandem.contract.capabilities import Probe
from tandem.contract.devices import check_index
from tandem.contract.environment import EMULATE
from tandem.errors import BackendLoadError, ConfigError, TandemError, VersionError

if TYPE_CHECKING:
    from tandem.backends.ascend.runtime import NpuRuntime

CHIPS = "Ascend950"  # what the names of all chips begin with that the kernels are built for


@dataclass(frozen=True, slots=True)
class Npu:
    """What the vendor's libraries say of a device.

    Args:
        index: logical, below ``count``.
        count: devices that are visible.
        soc: name of the chip.
        cann: version of the toolkit.
        driver: version of the driver.
    """

    index: int
    count: int
    soc: str
    cann: str
    driver: str


def probe() -> Probe:
    """Look for files, packages and variables; load nothing."""
    found = host.look()
    try:
        emulated = emulating()
    except ConfigError as error:
        return Probe(False, str(error), found.facts)
    if emulated:
        return _probe_emulation(found)
    missing = _missing(found)
    if missing is None:
        return Probe(True, f"{found.npus} NPU files; what they are is known once one is opened", found.facts)
    return Probe(False, missing[0], found.facts)


def _probe_emulation(found: Host) -> Probe:
    from tandem.backends.ascend import native
    from tandem.backends.ascend.runtime import LABEL

    built = any(place.exists() for place in native.places(native.EMULATED))
    if found.device:
        reason = f"{EMULATE}=1 beside a device, which is refused"
    else:
        reason = LABEL if built else f"the emulated kernels were never built: `{native.MAKE[native.EMULATED]}`"
    return Probe(built and not found.device, reason, found.facts, accelerator=False)


def open_runtime(index: int) -> NpuRuntime:
    """The runtime of a device, or the emulated one.

    Raises:
        BackendLoadError: something is missing, the chip is another, or emulation was asked for beside a device.
        VersionError: torch and torch-npu do not go together.
        DeviceIndexError: there is no such device.
    """
    found = host.look()
    if emulating():
        from tandem.backends.ascend.runtime import EmulatedRuntime

        check_emulation(found)
        check_index("ascend", index, 1, "the emulated device")
        return EmulatedRuntime()
    check_host(found, index)
    from tandem.backends.ascend import device, libraries

    check_libraries(libraries.unloadable(), found, index)
    device.load()
    npu = device.ask(index)
    check_index("ascend", index, npu.count, f"{VISIBLE}={found.facts[VISIBLE]}")
    check_chip(npu)
    return device.DeviceRuntime(npu)


def _missing(found: Host) -> tuple[str, str, type[TandemError]] | None:
    """The first thing that is not there, what to do about it, and the kind of error that it is."""
    if not found.driver:
        return f"there is no Ascend driver: {host.CONTROL} is absent", "install the driver", BackendLoadError
    if not found.npus:
        why, fix = "the driver is there, but no NPU: no file /dev/davinci0", "let this machine or container see its NPU"
        return why, fix, BackendLoadError
    if not found.device:
        why = f"{VISIBLE}={found.visible} leaves no NPU: {host.told(found.visible, found.npus)}"
        return why, f"unset {VISIBLE}, or name NPUs in it in ascending order", BackendLoadError
    if found.package == NOT_INSTALLED:
        return f"the package {host.PACKAGE} is not installed", "pip install 'tandem-infer[ascend]'", BackendLoadError
    if _release(found.package) != _release(found.torch):
        release = ".".join(_release(found.package))
        why = f"{host.PACKAGE} {found.package} is for torch {release}, and torch {found.torch} is here"
        return why, f"install {host.PACKAGE} and torch of the same version", VersionError
    if not found.toolkit:
        script = found.script or "set_env.sh of the toolkit, which is in none of the usual places,"
        why = f"no toolkit was sourced: {' and '.join(host.HOMES)} are unset"
        return why, f"source {script} in this shell", BackendLoadError
    if not os.path.isdir(found.toolkit):
        return f"the toolkit's folder {found.toolkit} does not exist", "source its set_env.sh again", BackendLoadError
    return None


def _release(version: str) -> list[str]:
    """The three numbers of a version: '2.13.0.post1' and '2.13.0+cpu' go together."""
    return version.partition("+")[0].split(".")[:3]


def check_host(found: Host, index: int) -> None:
    """Refuse to load libraries where something that they need is not there."""
    missing = _missing(found)
    if missing is not None:
        why, fix, kind = missing
        raise cannot_open(f"ascend:{index}", why, fix, found.facts, kind)


def check_libraries(unloadable: Mapping[str, str], found: Host, index: int) -> None:
    """Refuse to import torch-npu where the loader does not find what it is linked against."""
    if not unloadable:
        return
    name, words = next(iter(unloadable.items()))
    others = ", ".join(list(unloadable)[1:])
    why = f"{name} cannot be loaded: {words}" + (f" (nor can {others})" if others else "")
    fix = f"source set_env.sh of the toolkit in {found.toolkit} in this shell, or install the part that has {name}"
    raise cannot_open(f"ascend:{index}", why, fix, found.facts)


def check_emulation(found: Host) -> None:
    """Refuse to emulate a device beside a real one: its results would be taken for the device's."""
    if found.device:
        raise beside_a_device(f"{found.npus} NPU files and a driver", f"{VISIBLE}= (set to nothing)")


def check_chip(npu: Npu) -> None:
    """Refuse a chip that the kernels were not built for."""
    if npu.soc.startswith(CHIPS):
        return
    raise BackendLoadError(
        f"{npu.soc or 'a chip without a name'} is no Ascend 950",
        where=f"ascend:{npu.index}, CANN {npu.cann}, driver {npu.driver}",
        why=f"the kernels are built for dav-3510, which chips are whose name begins with {CHIPS}",
        fix=f"use an Ascend 950, or {NO_FALLBACK}",
    )

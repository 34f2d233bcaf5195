"""What this machine has for an Ascend device, found in files, metadata and variables alone: no library is loaded."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from tandem.accelerator.facts import Traces, gather
from tandem.contract.versions import UNKNOWN, installed

CONTROL, VISIBLE = "/dev/davinci_manager", "ASCEND_RT_VISIBLE_DEVICES"
PACKAGE = "torch-npu"
HOMES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")  # the toolkit's set_env.sh sets both
PATHS = "LD_LIBRARY_PATH"
LOOK_ALIKES = ("ASCEND_VISIBLE_DEVICES", "NPU_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
DEVICES = Path("/dev")
DRIVER, FIRMWARE = "/usr/local/Ascend/driver/version.info", "/usr/local/Ascend/firmware/version.info"
# Where the toolkit's installer puts the file that sets its variables, by default.
SCRIPTS = tuple(
    Path(root) / folder / "set_env.sh"
    for root in ("/usr/local/Ascend", "~/Ascend")
    for folder in ("cann", "ascend-toolkit")
)
NOT_INSTALLED = "not installed"


@dataclass(frozen=True, slots=True)
class Host:
    """What was found.

    Args:
        facts: names and values for tables and errors.
        driver: whether the driver's control file is there.
        npus: device files.
        visible: value of ASCEND_RT_VISIBLE_DEVICES; None where it is not set.
        package: version of torch-npu, ``not installed`` without.
        torch: version of torch.
        toolkit: folder of the toolkit that this process was started with, empty without.
        script: the file that would set its variables, where the toolkit is installed and was not sourced; else empty.
    """

    facts: dict[str, str]
    driver: bool
    npus: int
    visible: str | None
    package: str
    torch: str
    toolkit: str
    script: str

    @property
    def device(self) -> bool:
        """Whether a device seems to be there for this process."""
        return self.driver and self.npus > 0 and bool(logical(self.visible, self.npus))


def look() -> Host:
    """Look now."""
    npus = sum(bool(re.fullmatch(r"davinci\d+", path.name)) for path in DEVICES.glob("davinci*"))
    home = next((os.environ[name] for name in HOMES if os.environ.get(name)), "")
    visible = os.environ.get(VISIBLE)
    traces = Traces(
        device_file=CONTROL,
        package=PACKAGE,
        version_files={"CANN": toolkit_file(home), "driver": DRIVER, "firmware": FIRMWARE},
        variables=(*HOMES, VISIBLE),
        misnamed={} if visible is not None else dict.fromkeys(LOOK_ALIKES, VISIBLE),
    )
    facts = gather(traces)
    facts |= {"NPU files": str(npus), "logical devices": told(visible, npus)}
    if home:
        facts[PATHS] = f"has {'its' if sourced(home, os.environ.get(PATHS, '')) else 'none of its'} libraries"
    # os.path, because Path raises for a folder that may not be searched, and for a user without a home.
    scripts = map(os.path.expanduser, SCRIPTS)
    script = "" if home else next((path for path in scripts if os.path.isfile(path)), "")
    torch = installed(("torch",))["torch"]
    return Host(facts, os.path.exists(CONTROL), npus, visible, facts[PACKAGE], torch, home, script)


def toolkit_file(home: str) -> str:
    """The file in which an installed toolkit writes its version."""
    return str(Path(home) / f"{platform.machine()}-linux" / "ascend_toolkit_install.info") if home else UNKNOWN


def sourced(home: str, paths: str) -> bool:
    """Whether the loader's search path has a folder of the toolkit."""
    root = os.path.realpath(home)
    folders = (os.path.realpath(folder) for folder in paths.split(os.pathsep) if folder)
    return any(folder == root or folder.startswith(root + os.sep) for folder in folders)


def logical(visible: str | None, npus: int) -> list[int]:
    """Physical device of each logical one, as the vendor's runtime counts them; empty where it shows none.

    It reads numbers up to the first other character, and takes none at all where they do not ascend.
    """
    if visible is None:
        return list(range(npus))
    numbers = re.match(r"[\d,]*", visible)
    found: list[int] = []
    for word in (numbers.group() if numbers else "").split(","):
        if not word or int(word) >= npus:
            break
        found.append(int(word))
    return found if found == sorted(set(found)) else []


def told(visible: str | None, npus: int) -> str:
    """Which physical device each logical one is, or why there is none."""
    found = logical(visible, npus)
    if found:
        return ", ".join(f"{index} is {physical}" for index, physical in enumerate(found))
    if visible is None or not npus:
        return "none"
    numbers = [int(word) for word in re.findall(r"\d+", visible)]
    if numbers != sorted(set(numbers)):
        return f"none: the numbers of {VISIBLE} must ascend"
    return f"none: {VISIBLE}={visible} names none of 0..{npus - 1}"

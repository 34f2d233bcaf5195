"""What this machine has for a CUDA device, found in files and variables alone: no library is loaded for it."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from tandem.accelerator.facts import Traces, gather

CONTROL, VISIBLE = "/dev/nvidiactl", "CUDA_VISIBLE_DEVICES"
_NONE = "none"
_TRACES = Traces(
    device_file=CONTROL,
    package="triton",
    version_files={"driver": "/sys/module/nvidia/version"},
    variables=(VISIBLE,),
    misnamed={"CUDA_VISIBLE_DEVICE": VISIBLE, "GPU_VISIBLE_DEVICES": VISIBLE},
)


@dataclass(frozen=True, slots=True)
class Host:
    """What was found.

    Args:
        facts: names and values for tables and errors.
        driver: whether the driver's control file is there.
        gpus: device files.
        hidden: whether CUDA_VISIBLE_DEVICES leaves no device.
        triton: whether the package is installed.
        toolkit: CUDA version that torch was built with, ``none`` of a build without.
    """

    facts: dict[str, str]
    driver: bool
    gpus: int
    hidden: bool
    triton: bool
    toolkit: str

    @property
    def device(self) -> bool:
        """Whether a device seems to be there for this process."""
        return self.driver and self.gpus > 0 and not self.hidden


def look() -> Host:
    """Look now."""
    gpus = sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in Path("/dev").glob("nvidia*"))
    toolkit = _toolkit()
    facts = {**gather(_TRACES), "GPU files": str(gpus), "CUDA of torch": toolkit}
    visible = os.environ.get(VISIBLE)
    hidden = visible is not None and visible.split(",")[0].strip() in ("", "-1")
    return Host(facts, os.path.exists(CONTROL), gpus, hidden, facts["triton"] != "not installed", toolkit)


def _toolkit() -> str:
    """Read from a file of torch, which is not imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return _NONE
    file = Path(spec.origin).with_name("version.py")
    found = re.search(r"^cuda\b.*=\s*['\"]([\d.]+)['\"]", file.read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(1) if found else _NONE

"""Vendor packages that torch loads by itself, made up, and the command line with them among the installed packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SWITCH = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def vendor(
    folder: Path,
    text: str,
    module: str = "fake_vendor",
    version: str = "1.2",
    entry: str = "fakedev = fake_vendor:start",
) -> Path:
    """A package as it lies in a directory of installed packages."""
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir(parents=True)
    (folder / f"{module}.py").write_text(text)
    name = module.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[torch.backends]\n{entry}\n")
    return folder


def tandem(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The command line as a user runs it, with ``folder`` among the installed packages."""
    command = [sys.executable, "-m", "tandem.cli.main", *arguments]
    return subprocess.run(command, env=environment(folder, **more), capture_output=True, text=True)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Variables of a process that sees the packages in ``folder``."""
    kept = {k: v for k, v in os.environ.items() if not k.upper().startswith("TANDEM") and k != SWITCH}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), kept.get("PYTHONPATH"))))
    return kept | {"TANDEM_BACKEND": "cpu"} | more

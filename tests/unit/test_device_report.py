"""The report about a device is refused in four parts where there is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tandem.contract.environment import EMULATE


@pytest.mark.parametrize(
    ("value", "kind"),
    [("0", "BackendNotFound"), ("1", "ConfigError: no report is made"), ("yes", "ConfigError: no report")],
)
def test_no_report_without_a_device(repo_root: Path, tmp_path: Path, value: str, kind: str) -> None:
    command = [str(repo_root / "ci" / "device_report.sh"), "cudo", "--out", str(tmp_path / "reports")]
    done = subprocess.run(command, env=os.environ | {EMULATE: value}, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith(f"device_report: {kind}"), done.stderr
    assert all(part in done.stderr for part in ("Where: ", "Why: ", "Fix: ")) and "Traceback" not in done.stderr
    assert not (tmp_path / "reports").exists()

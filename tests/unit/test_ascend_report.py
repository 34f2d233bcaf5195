"""The report about an NPU is refused where there is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tandem.contract.environment import EMULATE


def test_no_report_without_an_npu(repo_root: Path, tmp_path: Path) -> None:
    command = [str(repo_root / "ci" / "device_report.sh"), "ascend", "--out", str(tmp_path / "reports")]
    environ = os.environ | {EMULATE: "0", "ASCEND_RT_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("device_report: BackendLoadError: backend 'ascend'"), (
        done.stderr
    )
    assert all(part in done.stderr for part in ("Where: ascend:0", "Why: ", "Fix: ")) and "Traceback" not in done.stderr
    assert not (tmp_path / "reports").exists()

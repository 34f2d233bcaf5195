"""The report about a device: refused in four parts where there is none, complete where there is one."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from tandem.checkpoint.shipped import shipped_model
from tandem.contract.environment import EMULATE
from tandem.contract.opspec import table_signature


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


def test_the_bundled_recording_is_of_the_model_that_comes_along(repo_root: Path) -> None:
    header = json.loads((repo_root / "tools" / "traces" / "nano-cpu" / "header.json").read_text(encoding="utf-8"))
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in shipped_model().iterdir()}
    assert header["model"]["files"].items() <= files.items()
    assert header["op_table"]["sha256"] == table_signature()


@pytest.mark.slow
def test_a_trial_on_the_cpu_has_every_step(repo_root: Path, tmp_path: Path) -> None:
    """The CPU stands in for a device: a report is made of any backend that opens."""
    command = [str(repo_root / "ci" / "device_report.sh"), "cpu", "--quick", "--op", "rms_norm", "--out", str(tmp_path)]
    done = subprocess.run(command, env=os.environ | {EMULATE: "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (page,) = tmp_path.glob("*.md")
    report = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert set(report["parity"]["replays"]) == {"bundled local", "bundled free", "host local", "host free"}
    assert report["conformance"]["level"] == "none" and not report["conformance"]["failed"]  # a quick run shows none
    assert {one["op"] for one in report["benchmarks"]["ops"]} == {"rms_norm"} and not report["benchmarks"]["failed"]
    text = page.read_text(encoding="utf-8")
    assert "A trial (`--quick`)" in text and "- bundled local: holds" in text and "`rms_norm`" in text

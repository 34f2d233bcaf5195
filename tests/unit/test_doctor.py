"""`tandem doctor`: a vendor package that breaks torch is found and named; versions and variables carry their labels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.vendor import SWITCH, tandem, vendor

from tandem.cli import autoload, doctor, survey
from tandem.cli.main import main

RAISES = "def start():\n    raise ImportError('libfakehal.so: cannot open shared object file')\n"
CRASHES = "import os, signal\ndef start():\n    os.kill(os.getpid(), signal.SIGSEGV)\n"


def test_a_broken_automatic_load_is_diagnosed(tmp_path: Path) -> None:
    done = tandem(vendor(tmp_path, RAISES), "doctor", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    (problem,) = found["problems"]
    assert problem == {
        "error": "BackendLoadError",
        "what": "torch cannot be imported because a vendor package that it loads automatically fails",
        "where": "entry point torch.backends: fakedev = fake_vendor:start of fake-vendor 1.2",
        "why": "ImportError: libfakehal.so: cannot open shared object file",
        "fix": "set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to run without the package, or repair or uninstall it",
    }
    assert found["backends"]["cpu"]["state"] == "present"  # seen without the vendor package
    assert not found["selected"]["usable"] and f"with {SWITCH}=0 it could: cpu:0" in found["selected"]["why"]


def test_the_switch_that_it_names_helps(tmp_path: Path) -> None:
    done = tandem(vendor(tmp_path, RAISES), "doctor", "--json", **{SWITCH: "0"})
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["problems"] == [] and found["selected"]["usable"]
    entry = {"fakedev": "fake_vendor:start of fake-vendor 1.2"}
    assert found["autoload"] == {"enabled": False, "entry_points": entry}


def test_a_vendor_package_that_crashes_is_named(tmp_path: Path) -> None:
    done = tandem(vendor(tmp_path, CRASHES), "doctor")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "PROBLEM  torch cannot be imported because a vendor package that it loads automatically fails"
    assert lines[1].startswith("         where: entry point torch.backends: fakedev = fake_vendor:start")
    assert lines[2].startswith("         why: the process that imports torch ended with signal 11")
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in lines[3]


def test_other_commands_say_it_too(tmp_path: Path) -> None:
    done = tandem(vendor(tmp_path, RAISES), "generate", "Hello", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    told = json.loads(done.stderr)
    assert "fakedev = fake_vendor:start of fake-vendor 1.2" in told["where"] and SWITCH in told["fix"]


def test_a_broken_plug_in_is_never_passed_over(tmp_path: Path, tiny: Path) -> None:
    """Asked for: an error.  Found: shown, and named in the one warning of a run that the CPU takes over."""
    info = tmp_path / "toys-0.3.dist-info"
    info.mkdir()
    (tmp_path / "toys.py").write_text("raise ImportError('libtoy.so: no such file')\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[tandem.backends]\ntoy = toys:Toy\n")
    generate = ("generate", "Once", "--model", str(tiny), "--max-tokens", "1")
    named = tandem(tmp_path, *generate, TANDEM_BACKEND="toy")
    assert (named.returncode, named.stdout) == (2, "")
    assert "backend 'toy' was requested but its registration failed" in named.stderr
    assert "ImportError: libtoy.so: no such file" in named.stderr and "No fallback was made" in named.stderr
    shown = tandem(tmp_path, "doctor", "--json", TANDEM_BACKEND="toy")
    entry = json.loads(shown.stdout)["backends"]["toy"]
    assert shown.returncode == 1 and (entry["state"], entry["from"]) == ("failed", "toys")
    assert "line 1, in <module>" in entry["traceback"] and "libtoy.so" in entry["traceback"]
    free = tandem(tmp_path, *generate, TANDEM_BACKEND="")
    warned = [line for line in free.stderr.splitlines() if "running on the CPU" in line]
    assert free.returncode == 0 and len(warned) == 1
    failure = "backend 'toy' (from toys): its registration failed: ImportError: libtoy.so: no such file"
    assert warned[0].endswith(failure)


def test_libraries_of_torch_that_do_not_load_are_left_to_the_import(tmp_path: Path) -> None:
    """It is the import whose answer counts: it may find them elsewhere, or say what is wrong."""
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "version.py").write_text("__version__ = '2.13.0'\n")
    (torch / "__init__.py").write_text("raise ImportError('libtorch_cpu.so: cannot open shared object file')\n")
    done = tandem(tmp_path, "doctor", "--json")
    (problem,) = json.loads(done.stdout)["problems"]
    assert done.returncode == 1 and problem["what"] == "torch cannot be imported"
    assert problem["why"] == "ImportError: libtorch_cpu.so: cannot open shared object file"
    (torch / "__init__.py").write_text("")
    assert json.loads(tandem(tmp_path, "doctor", "--json").stdout)["problems"] == []


def test_an_unrelated_error_is_not_explained() -> None:
    assert autoload.explain(RuntimeError("out of memory")) is None


def test_the_doctor_imports_no_torch() -> None:
    program = (
        "import sys, contextlib, io; from tandem.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()): main(['doctor'])\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'safetensors')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_process_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PATIENCE", 0.01)
    assert doctor.ask({}) == (None, {"why": "the process that imports torch gave no answer in 0 seconds"})


def test_what_a_vendor_library_prints_is_passed_over(tmp_path: Path) -> None:
    text = "import atexit\ndef start():\n    print('hello 1')\n    atexit.register(print, '[bye]')\n"
    found = json.loads(tandem(vendor(tmp_path, text), "doctor", "--json").stdout)
    assert found["problems"] == [] and found["selected"]["usable"]


# -- without a second process -----------------------------------------------------------------------------------

SURVEY: dict[str, Any] = {
    "table": "frozen",
    "backends": {},
    "selected": {"how": "automatic", "usable": True, "backend": "cpu:0", "why": "host processor"},
    "model": {"origin": "shipped", "present": False, "path": "nano", "bytes": 0, "reason": "not there"},
}


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], survey: dict[str, Any]) -> str:
    monkeypatch.setattr(doctor, "ask", lambda environment: (SURVEY | survey, {}))
    assert main(["doctor"]) == 0
    return capsys.readouterr().out


def test_look_alike_variables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in os.environ if name.upper().startswith("TANDEM")]:
        monkeypatch.delenv(name)
    for name in ("TANDEM_BACKENDS", "TANDEMBACKEND", "TANDEM_DEVICE", "tandem_backend", "TADNEM_BACKEND"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("TANDEM_CACHE_BLOCKSIZE", "8")
    monkeypatch.setenv("TANDEM_ZZZ", "8")
    monkeypatch.setenv("TANDEM_CACHE_BLOCK_SIZE", "8")
    lines = shown(monkeypatch, capsys, {}).splitlines()
    for name in ("TANDEM_BACKENDS=x", "TANDEMBACKEND=x", "TANDEM_DEVICE=x", "tandem_backend=x", "TADNEM_BACKEND"):
        assert f"  {name}  NOT READ: did you mean TANDEM_BACKEND?" in lines
    assert "  TANDEM_CACHE_BLOCKSIZE=8  NOT READ: did you mean TANDEM_CACHE_BLOCK_SIZE?" in lines
    assert "  TANDEM_ZZZ=8  not read" in lines and "  TANDEM_CACHE_BLOCK_SIZE=8" in lines


def test_a_failed_registration_is_shown_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = "Traceback (most recent call last):\n  File x\nImportError: no toys\n"
    entry = {"from": "toys", "contract": "unknown", "state": "failed", "facts": {}, "traceback": trace}
    entry |= {"batch_invariant": False, "batch_invariant_why": "it cannot be loaded"}
    entry |= {"reason": "its registration failed: ImportError: no toys"}
    text = shown(monkeypatch, capsys, {"backends": {"toy": entry}})
    assert "toy      failed   its registration failed: ImportError: no toys  [from toys, contract unknown]" in text
    bar = "           | "
    assert f"{bar}Traceback (most recent call last):\n{bar}  File x\n{bar}ImportError: no toys" in text


def test_the_version_matrix_has_labels_and_unknown_cells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"facts": {"CANN": "9.2"}, "from": "tandem", "contract": "1.0", "state": "absent", "traceback": ""}
    entry |= {"batch_invariant": False, "batch_invariant_why": "no conformance run is recorded"}
    text = shown(monkeypatch, capsys, {"backends": {"ascend": entry | {"reason": "no device"}}})
    rows = [line.split() for line in text.split("versions (")[1].split("\n\n")[0].splitlines()[1:]]
    assert rows[0][:2] == ["backend", "python"] and rows[0][-2:] == ["label", "report"]
    here = {row[0]: row for row in rows if row[1] == "here"}
    assert set(here) == {"cpu", "cuda", "ascend"} and "9.2" in here["ascend"] and "unknown" in here["cuda"]
    assert {row[-2] for row in rows[1:]} <= {"tested", "declared", "unknown"}


def test_torch_that_cannot_be_imported_at_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "ask", lambda environment: (None, {"why": "ImportError: libtorch.so"}))
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["problems"][0]["what"] == "torch cannot be imported"
    assert found["problems"][0]["why"] == found["selected"]["why"] == "ImportError: libtorch.so"
    assert found["backends"]["cpu"]["state"] == "unknown" and found["table"] == "unknown"


def test_the_model_that_a_variable_names_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_MODEL_PATH", str(tmp_path / "none"))
    found = survey.model()
    assert (found["origin"], found["present"], found["path"]) == ("named", False, str(tmp_path / "none"))
    assert "does not exist" in found["reason"]


def test_a_composite_that_does_not_exist_stops_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_BACKEND", "cpu")
    assert survey.selected()["usable"]
    monkeypatch.setenv("TANDEM_COMPOSITE", "rms_nrom")
    found = survey.selected()
    assert not found["usable"] and "did you mean rms_norm?" in found["why"]

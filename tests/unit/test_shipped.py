"""The model that comes with the package: what lies there, when it runs, how `tandem doctor` shows it."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.checkpoint import shipped
from tandem.checkpoint.inventory import TensorGroup
from tandem.checkpoint.reader import Checkpoint
from tandem.cli import doctor, survey
from tandem.cli.main import main
from tandem.engine.llm import LLM
from tandem.errors import CheckpointError

Capture = pytest.CaptureFixture[str]
MOST_BYTES = 16 * 2**20
FIXED = ("--backend", "cpu", "--max-tokens", "4", "--seed", "5", "--ignore-eos", "--set", "model.max_model_len=64")


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TANDEM_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def nano(repo_root: Path) -> Path:
    return repo_root / "core" / "assets" / "nano"


# -- what lies there ---------------------------------------------------------------------------------------


def test_it_is_a_complete_checkpoint_with_its_draft_module(nano: Path) -> None:
    assert shipped.shipped_model().samefile(nano)
    with Checkpoint.open(shipped.shipped_model()) as checkpoint:
        assert checkpoint.validate() >= {TensorGroup.TEXT, TensorGroup.DSPARK}
        stored = {file.name for file in nano.glob("*.safetensors")}
        assert {shard.path.name for shard in checkpoint._files()} == stored


def test_it_is_small_enough_for_the_repository(nano: Path) -> None:
    assert 0 < sum(file.stat().st_size for file in nano.rglob("*") if file.is_file()) <= MOST_BYTES


def test_the_build_takes_every_file_along(repo_root: Path, nano: Path) -> None:
    """As setuptools lists package data, from setup.py and pyproject.toml, without building."""
    program = """
import json
from distutils.core import run_setup
dist = run_setup("setup.py", stop_after="config")
build = dist.get_command_obj("build_py")
build.ensure_finalized()
print(json.dumps([f"{source}/{name}" for _, source, _, names in build.data_files for name in names]))
"""
    command = [sys.executable, "-c", "import setuptools\n" + program]
    done = subprocess.run(command, cwd=repo_root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed = {(repo_root / Path(name)).resolve() for name in json.loads(done.stdout.splitlines()[-1])}
    files = {file.resolve() for file in nano.rglob("*") if file.is_file()}
    assert files and files <= listed


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors.index.json"])
def test_a_missing_file_is_named(nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path)
    for kept in ("config.json", "tokenizer.json", "model.safetensors.index.json"):
        if kept != name:
            shutil.copy(nano / kept, tmp_path)
    with pytest.raises(CheckpointError) as caught:
        shipped.shipped_model()
    assert caught.value.where == str(tmp_path / name) and caught.value.why == "the file does not exist"
    assert "comes with Tandem" in caught.value.what and "install Tandem again" in caught.value.fix


# -- when it runs ------------------------------------------------------------------------------------------


def test_it_runs_where_no_model_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for model in ((), ("--model", str(shipped.shipped_model()))):
        assert main(["generate", "In the beginning", *FIXED, "--json", *model]) == 0
        texts.append(json.loads(capsys.readouterr().out))
    assert texts[0] == texts[1] and len(texts[0]["token_ids"]) == 4
    monkeypatch.setattr(sys, "stdin", io.StringIO("Who are you?\n"))
    assert main(["chat", *FIXED, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["token_ids"]) == 4
    small = ["--prompt-tokens", "5", "--steps", "1", "--rounds", "1", "--set", "model.max_model_len=64"]
    assert main(["bench", "decode", "--backend", "cpu", "--json", *small]) == 0
    assert json.loads(capsys.readouterr().out)["steps"]["median"] == 1


def test_the_library_takes_it_too() -> None:
    llm = LLM(backend="cpu", options={"model.max_model_len": 64})
    assert llm.config.model.path is None and "model.path" not in llm.config.origins
    assert llm._assembly.checkpoint.path == shipped.shipped_model()
    llm.close()


def test_a_named_model_wins_file_before_environment_before_flag(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models that do not exist, so that the error says which one was opened."""
    places = {name: str(tmp_path / name) for name in ("file", "environment", "flag")}
    file = tmp_path / "engine.json"
    file.write_text(json.dumps({"model": {"path": places["file"]}}))
    command = ["generate", "Hi", "--backend", "cpu", "--json"]

    def opened(*arguments: str) -> str:
        assert main([*command, *arguments]) == 2
        error = json.loads(capsys.readouterr().err)
        assert error["error"] == "CheckpointError"
        return error["where"]

    assert opened("--config", str(file)) == places["file"]
    monkeypatch.setenv("TANDEM_MODEL_PATH", places["environment"])
    assert opened() == opened("--config", str(file)) == places["environment"]
    assert opened("--config", str(file), "--model", places["flag"]) == places["flag"]
    assert opened("--set", f"model.path={places['flag']}") == places["flag"]


@pytest.mark.parametrize("command", ["generate", "chat", "bench decode"])
def test_help_says_so(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    assert "default: the small model that comes with Tandem" in " ".join(capsys.readouterr().out.split())


# -- how doctor shows it -----------------------------------------------------------------------------------


def shown_by_doctor(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, object], str]:
    monkeypatch.setenv("TANDEM_BACKEND", "cpu")
    monkeypatch.setattr(doctor, "ask", lambda environment: (survey.survey(), {}))  # in this process: it is patched
    assert main(["doctor", "--json"]) == 0
    entry = json.loads(capsys.readouterr().out)["model"]
    assert main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  shipped ")]
    return entry, line


def test_doctor_shows_it(nano: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, line = shown_by_doctor(capsys, monkeypatch)
    size = sum(file.stat().st_size for file in nano.rglob("*") if file.is_file())
    assert (entry["present"], entry["path"], entry["bytes"]) == (True, str(shipped.shipped_model()), size)
    assert " present " in line and str(shipped.shipped_model()) in line and f"{size / 2**20:.1f} MiB" in line


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model-00001-of-00005.safetensors"])
def test_doctor_says_what_is_missing(
    tiny: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shutil.copytree(tiny, tmp_path / "model")
    (tmp_path / "model" / name).unlink()
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path / "model")
    entry, line = shown_by_doctor(capsys, monkeypatch)
    assert (entry["present"], entry["bytes"]) == (False, 0)
    assert name in str(entry["reason"]) and " absent " in line and name in line

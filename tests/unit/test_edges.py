"""Input from the edges of what can be written: one line of error, exit code 2, no traceback, nothing else disturbed."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import World

from tandem import LLM, SamplingParams
from tandem.cli.main import main
from tandem.config import load_config
from tandem.errors import CheckpointError, ConfigError, RequestError

SHORT = ["--max-tokens", "2", "--temperature", "0"]
OPTIONS = [
    "cache.num_blocks=1000000000000",
    "cache.num_blocks=9223372036854775808",
    "cache.num_blocks=16777216",  # times 128 tokens is 2^31
    "cache.block_size=1099511627776",
    "scheduler.max_tokens_per_step=1000000000",
    "backend.device=7",
]
NUMBERS: list[tuple[str, float]] = [
    ("sliding_window", 10**30),
    ("candidate_block_size", 10**30),
    ("hc_sinkhorn_iters", 10**30),
    ("n_routed_experts", 10**30),
    ("dspark_n_routed_experts", 10**30),
    ("engram_vocab_size", 10**30),
    ("swiglu_limit", 1e300),
    ("rms_norm_eps", 1e300),
    ("routed_scaling_factor", 1e30),
    ("hc_eps", 10**400),
]
PARAMS = SamplingParams(max_tokens=2, temperature=0.0)


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """Run a command that has to be refused; returns its one line of error."""
    assert main(list(command)) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "Traceback" not in shown.err
    return shown.err


@pytest.fixture()
def damaged(tiny: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "damaged"
    shutil.copytree(tiny, copy)
    return copy


@pytest.mark.parametrize("option", OPTIONS)
def test_engine_options_have_bounds(
    tiny: Path, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TANDEM_BACKEND", raising=False)
    refused(capsys, "generate", "hi", "--model", str(tiny), *SHORT, "--set", option)


@pytest.mark.parametrize(("name", "value"), NUMBERS)
def test_model_numbers_have_bounds(
    damaged: Path, name: str, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((damaged / "config.json").read_text())
    config["text_config"][name] = value
    (damaged / "config.json").write_text(json.dumps(config))
    assert f"text_config.{name}" in refused(capsys, "generate", "hi", "--model", str(damaged), *SHORT)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json"])
def test_deeply_nested_files_are_damage(damaged: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    (damaged / file).write_text('{"a":' * 50000)
    assert file in refused(capsys, "checkpoint", "inspect", str(damaged))


def test_a_shard_name_that_no_file_can_have(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (damaged / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "b" * 5000}}))
    assert "CheckpointError" in refused(capsys, "checkpoint", "inspect", str(damaged))


def test_a_dtype_that_is_no_name(damaged: Path) -> None:
    shard = next(iter(sorted(damaged.glob("*.safetensors"))))
    data = shard.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header[next(name for name in header if name != "__metadata__")]["dtype"] = ["F32"]
    text = json.dumps(header).encode()
    shard.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    with pytest.raises(CheckpointError, match="dtype"):
        LLM(damaged, backend="cpu")


def test_auto_as_an_argument_wins_over_the_environment(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_BACKEND", "cuda")
    with pytest.warns(UserWarning, match="no accelerator"):
        llm = LLM(tiny, backend="auto")
    assert llm.backend.name == "cpu"
    llm.close()


def test_characters_that_the_terminal_lacks_are_escaped(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["generate", "hi", "--model", str(tiny), "--backend", "cpu", "--max-tokens", "24", "--seed", "1"]) == 0
    sys.stdout.flush()
    assert b"\\ufffd" in raw.getvalue()


def test_input_bytes_that_are_no_text(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xff"), encoding="utf-8"))
    assert "RequestError" in refused(capsys, "generate", "-", "--model", str(tiny), "--backend", "cpu", *SHORT)


@pytest.mark.parametrize("place", ["/proc/nowhere", "a file"])
def test_a_checkpoint_that_cannot_be_written(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file") if place == "a file" else place
    assert "CheckpointError" in refused(capsys, "checkpoint", "make-tiny", "--out", out)


@pytest.mark.parametrize("prompts", [b"abc", None, {5: 1}, {5, 1}, (text for text in ["a"])])
def test_prompts_of_a_wrong_kind(world: World, prompts: Any) -> None:
    with pytest.raises(RequestError):
        world.llm.generate(prompts, PARAMS)


@pytest.mark.parametrize("prompt", [b"abc", {5: 1}, {5, 1}, [True, False]])
def test_one_prompt_of_a_wrong_kind_among_good_ones(world: World, prompt: Any) -> None:
    first, bad, last = world.llm.generate([[3, 4], prompt, [3, 4]], PARAMS)
    assert isinstance(bad.error, RequestError)
    assert first.error is None and first.token_ids == last.token_ids


def test_an_array_of_ids_is_one_prompt(world: World) -> None:
    (one,) = world.llm.generate(np.array([3, 4, 5]), PARAMS)  # type: ignore[arg-type]
    (same,) = world.llm.generate([3, 4, 5], PARAMS)
    assert one.error is None and one.token_ids == same.token_ids


def test_parameters_of_a_wrong_kind(world: World) -> None:
    with pytest.raises(RequestError, match="dict"):
        world.llm.generate(["a"], {"max_tokens": 3})  # type: ignore[arg-type]
    good, bad = world.llm.generate(["a", "b"], [PARAMS, None])  # type: ignore[list-item]
    assert good.error is None and isinstance(bad.error, RequestError)


def test_a_ready_configuration_takes_no_other_options(tiny: Path) -> None:
    config = load_config(None, {}, {"model.path": str(tiny), "backend.name": "cpu"})
    with pytest.raises(ConfigError, match="would be ignored"):
        LLM(config=config, options={"scheduler.max_slots": 3})
    with pytest.raises(ConfigError, match="would be ignored"):
        LLM("elsewhere", config=config)

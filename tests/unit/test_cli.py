"""The command line: what it prints, and how bad input ends."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.cli.main import main
from tandem.engine.llm import LLM
from tandem.sampling.params import SamplingParams
from tandem.tokenizer.chat import render_chat

Capture = pytest.CaptureFixture[str]
SMALL = ("--backend", "cpu", "--set", "model.max_model_len=128", "--set", "scheduler.max_slots=4")
FIXED = ("--max-tokens", "6", "--seed", "5", "--ignore-eos")


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TANDEM_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def want(tiny: Path) -> Any:
    """The result that every way to ask for it must give."""
    llm = LLM(tiny, backend="cpu", options={"model.max_model_len": 128, "scheduler.max_slots": 4})
    return llm.generate("Once upon", SamplingParams(max_tokens=6, seed=5, ignore_eos=True))[0]


def generate(tiny: Path, *arguments: str) -> int:
    return main(["generate", "Once upon", "--model", str(tiny), *SMALL, *FIXED, *arguments])


# -- what it prints ----------------------------------------------------------------------------------------


def test_generate_for_people(tiny: Path, want: Any, capsys: Capture) -> None:
    assert generate(tiny) == 0
    out, err = capsys.readouterr()
    assert out == want.text + "\n"
    assert "6 drawn" in err and "finished by length" in err and "cpu" in err and err.count("\n") == 1


def test_a_prefix_cache_that_cannot_hit_is_noted_where_it_matters(tiny: Path, capsys: Capture) -> None:
    """A request of 128 tokens has no full block of 128 before its last prompt token."""
    told = "note: the prefix cache is off, for it could never serve a request: "
    for more, lines in (((), 0), (("--verbose",), 1), (("--set", "cache.window_block=64"), 1)):
        assert generate(tiny, *more) == 0
        notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
        assert len(notes) == lines and all(line.startswith(told) for line in notes)
    assert generate(tiny, "--verbose", "--json") == 0
    assert json.loads(capsys.readouterr().err)["note"] == notes[0].removeprefix("note: ")


def test_generate_for_machines(tiny: Path, want: Any, capsys: Capture) -> None:
    assert generate(tiny, "--json", "--logprobs", "2", "--top-k", "500") == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert err == "" and out.count("\n") == 1
    assert result["token_ids"] == list(want.token_ids) and result["text"] == want.text
    assert result["prompt_token_ids"] == list(want.prompt_token_ids)
    assert (result["finish_reason"], result["stop_reason"]) == ("length", None)
    assert [entry["token_id"] for entry in result["logprobs"]] == result["token_ids"]
    assert all(entry["raw"] <= max(entry["top"].values()) and len(entry["top"]) == 2 for entry in result["logprobs"])


def test_streams(tiny: Path, want: Any, capsys: Capture) -> None:
    assert generate(tiny, "--stream") == 0
    assert capsys.readouterr().out == want.text + "\n"
    assert generate(tiny, "--stream", "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [t for line in lines[:-1] for t in line["token_ids"]] == list(want.token_ids)
    assert "".join(line["text"] for line in lines[:-1]) == lines[-1]["text"] == want.text
    assert lines[-1]["token_ids"] == list(want.token_ids)


def test_logprobs_for_people(tiny: Path, want: Any, capsys: Capture) -> None:
    assert generate(tiny, "--logprobs", "2") == 0
    table = capsys.readouterr().out.removeprefix(want.text + "\n").splitlines()
    assert [line.split()[0] for line in table] == ["token", *map(str, want.token_ids)]


def test_stop_string_and_temperature_zero(tiny: Path, capsys: Capture) -> None:
    texts = []
    for seed in ("1", "2"):
        assert generate(tiny, "--temperature", "0", "--seed", seed, "--json") == 0
        texts.append(json.loads(capsys.readouterr().out)["text"])
    assert texts[0] == texts[1]
    stop = texts[0][1:3]
    assert generate(tiny, "--temperature", "0", "--json", "--stop", stop) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["text"], result["stop_reason"]) == (texts[0][: texts[0].index(stop)], stop)


def test_the_prompt_may_come_from_standard_input(
    tiny: Path, want: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Once upon"))
    assert main(["generate", "-", "--model", str(tiny), *SMALL, *FIXED]) == 0
    assert capsys.readouterr().out == want.text + "\n"


def test_options_by_file_environment_and_flag(
    tiny: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "engine.toml"
    file.write_text(f'[model]\npath = "{tiny}"\nmax_model_len = 8\n')
    ask = ["generate", "Once upon a time there was", "--config", str(file), *FIXED]
    monkeypatch.setenv("TANDEM_BACKEND", "cpu")
    assert main(ask) == 2 and "limit of 8" in capsys.readouterr().err
    monkeypatch.setenv("TANDEM_MODEL_MAX_MODEL_LEN", "16")
    assert main(ask) == 2 and "limit of 16" in capsys.readouterr().err
    assert main([*ask, "--set", "model.max_model_len=128"]) == 0


def chat(tiny: Path, monkeypatch: pytest.MonkeyPatch, lines: str, *arguments: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    return main(["chat", "--model", str(tiny), *SMALL, *FIXED, *arguments])


def test_chat_from_standard_input(tiny: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chat(tiny, monkeypatch, "Hi\n\nAnd now?\n/quit\nnever\n", "--json", "--system", "Be brief.") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 2
    llm = LLM(tiny, backend="cpu", options={"model.max_model_len": 128, "scheduler.max_slots": 4})
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert answers[0]["prompt_token_ids"] == render_chat(messages, llm.tokenizer)
    messages += [{"role": "assistant", "content": answers[0]["text"]}, {"role": "user", "content": "And now?"}]
    assert answers[1]["prompt_token_ids"] == render_chat(messages, llm.tokenizer)
    assert chat(tiny, monkeypatch, "Hi\nAnd now?\n", "--system", "Be brief.") == 0
    assert capsys.readouterr().out == "".join(answer["text"] + "\n" for answer in answers)


def test_reset_begins_a_new_conversation(tiny: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chat(tiny, monkeypatch, "Hi\nAnd now?\n/reset\nHi\n", "--json", "--system", "Be brief.") == 0
    first, second, again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert again == first and len(second["prompt_token_ids"]) > len(first["prompt_token_ids"])


def test_a_conversation_that_grows_too_long_ends_in_an_error(
    tiny: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chat(tiny, monkeypatch, "x" * 300 + "\n") == 2
    out, err = capsys.readouterr()
    assert out == "" and "limit of 128" in err


def test_doctor(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_BACKEND", "cpu")
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["backends"]) >= {"cpu", "cuda", "ascend"}
    assert report["backends"]["cpu"]["present"] and not report["backends"]["ascend"]["present"]
    assert report["backends"]["ascend"]["reason"] and report["environment"]["TANDEM_BACKEND"] == "cpu"
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for name in ("cpu", "cuda", "ascend", "torch", report["contract"], report["python"]):
        assert name in shown


@pytest.mark.parametrize(("phase", "tokens"), [("decode", 2), ("prefill", 10)])
def test_bench(tiny: Path, capsys: Capture, phase: str, tokens: int) -> None:
    small = ["--batch", "2", "--prompt-tokens", "5", "--steps", "1", "--rounds", "2"]
    command = ["bench", phase, "--model", str(tiny), *SMALL, *small]
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["phase"], result["batch"], result["prompt_tokens"]) == (phase, 2, 5)
    assert result["steps"]["median"] == 1
    for round_value in ("min", "max"):
        other = {"min": "max", "max": "min"}[round_value]
        rate, step = result["tokens_per_s"][round_value], result["step_s"][other]
        assert rate == pytest.approx(tokens / step)
    assert sum(result[p]["median"] for p in ("schedule", "forward", "sample", "deliver")) <= result["step_s"]["max"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    for word in ("tokens/s", "schedule", "forward", "sample", phase):
        assert word in shown


def test_checkpoint_commands(tiny: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["checkpoint", "make-tiny", "--seed", "0", "--out", str(tmp_path / "made")]) == 0
    for file in sorted(tiny.iterdir()):
        assert (tmp_path / "made" / file.name).read_bytes() == file.read_bytes(), file.name
    capsys.readouterr()
    assert main(["checkpoint", "inspect", str(tiny), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["directory"] == str(tiny)


def test_as_a_program_of_its_own(tiny: Path, want: Any) -> None:
    command = [sys.executable, "-m", "tandem.cli.main", "generate", "Once upon", "--model", str(tiny), *FIXED]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")} | {"TANDEM_BACKEND": "cpu"}
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and json.loads(done.stdout)["token_ids"] == list(want.token_ids)
    bad = subprocess.run([*command, "--top-p", "0", "--json"], capture_output=True, text=True, env=environment)
    assert (bad.returncode, bad.stdout) == (2, "") and json.loads(bad.stderr)["where"] == "SamplingParams.top_p"
    # A reader that goes away ends it quietly.
    shown = subprocess.run(
        " ".join([*command[:4], "'Once upon'", *command[5:], "--stream", "--json", "| head -n 1"]),
        shell=True, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert shown.returncode == 0 and shown.stderr == ""
    assert json.loads(shown.stdout)["token_ids"] == [want.token_ids[0]]


# -- bad input ---------------------------------------------------------------------------------------------


def copied(tiny: Path, tmp_path: Path) -> Path:
    target = tmp_path / "model"
    shutil.copytree(tiny, target)
    return target


def without_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()


def damaged_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text("{")


def truncated(model: Path) -> None:
    shard = sorted(model.glob("*.safetensors"))[2]
    shard.write_bytes(shard.read_bytes()[:-1000])


def without_shard(model: Path) -> None:
    sorted(model.glob("*.safetensors"))[1].unlink()


def edited(*keys: str, value: Any = None) -> Callable[[Path], None]:
    """Change a field of config.json, or take it out."""

    def edit(model: Path) -> None:
        config = json.loads((model / "config.json").read_text())
        inner = config
        for key in keys[:-1]:
            inner = inner[key]
        if value is None:
            del inner[keys[-1]]
        else:
            inner[keys[-1]] = value
        (model / "config.json").write_text(json.dumps(config))

    return edit


def not_json(model: Path) -> None:
    (model / "config.json").write_text("hidden_size: 128")


def ends_in_one_clear_error(arguments: list[str], kind: str, words: tuple[str, ...], capsys: Capture) -> None:
    """Exit code 2, nothing on standard output, one line in four parts; with --json the same parts as JSON."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "Traceback" not in err
    assert err.startswith(f"tandem: {kind}: ")
    places = [err.index(part) for part in (" Where: ", " Why: ", " Fix: ")]
    assert places == sorted(places)
    assert main([*arguments, "--json"]) == 2
    out, machine = capsys.readouterr()
    assert out == ""
    parts = json.loads(machine)
    assert parts.pop("error") == kind and sorted(parts) == ["fix", "what", "where", "why"]
    for part, text in parts.items():
        assert text and text in err, part
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("damage", "kind", "words"),
    [
        (without_tokenizer, "TokenizerError", ("tokenizer.json", "does not exist")),
        (damaged_tokenizer, "TokenizerError", ("tokenizer.json",)),
        (truncated, "CheckpointError", ("model-00003-of-00005.safetensors",)),
        (without_shard, "CheckpointError", ("model-00002-of-00005.safetensors",)),
        (edited("text_config", "hidden_size"), "ConfigError", ("hidden_size",)),
        (edited("text_config", "hidden_size", value="128"), "ConfigError", ("hidden_size", "'128'")),
        (edited("text_config", "rms_norm_eps", value=True), "ConfigError", ("rms_norm_eps",)),
        (edited("text_config", "num_hidden_layers", value=9), "ConfigError", ("layers",)),
        (edited("architectures", value=["OtherModel"]), "ConfigError", ("OtherModel",)),
        (edited("eos_token_id"), "ConfigError", ("eos_token_id",)),
        (not_json, "ConfigError", ("config.json",)),
    ],
)
def test_bad_models(
    tiny: Path, tmp_path: Path, capsys: Capture, damage: Callable[[Path], None], kind: str, words: tuple[str, ...]
) -> None:
    model = copied(tiny, tmp_path)
    damage(model)
    ends_in_one_clear_error(["generate", "Hi", "--model", str(model), *SMALL, *FIXED], kind, words, capsys)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (("--temperature", "nan"), "RequestError", ("temperature", "nan")),
        (("--temperature", "-1"), "RequestError", ("temperature", "-1")),
        (("--temperature", "inf"), "RequestError", ("temperature", "inf")),
        (("--top-p", "0"), "RequestError", ("top_p", "0.0")),
        (("--top-p", "1.5"), "RequestError", ("top_p", "1.5")),
        (("--top-k", "0"), "RequestError", ("top_k",)),
        (("--max-tokens", "0"), "RequestError", ("max_tokens",)),
        (("--max-tokens", "1000000"), "RequestError", ("1000000", "limit of 128")),
        (("--max-tokens", "99999999999999999999"), "RequestError", ("max_tokens",)),
        (("--seed", "-1"), "RequestError", ("seed",)),
        (("--logprobs", "-3"), "RequestError", ("logprobs", "-3")),
        (("--stop", ""), "RequestError", ("stop",)),
        (("--set", "cache.nope=3"), "ConfigError", ("cache.nope", "did you mean")),
        (("--set", "cache.block_size"), "ConfigError", ("cache.block_size", "'='")),
        (("--set", "cache.block_size=many"), "ConfigError", ("cache.block_size", "many")),
        (("--set", "cache.block_size=33"), "ConfigError", ("cache.block_size", "33")),
        (("--set", "model.max_model_len=4096"), "ConfigError", ("4096", "1024")),
        (("--config", "/nowhere/engine.toml"), "ConfigError", ("/nowhere/engine.toml",)),
        (("--model", "/nowhere/model"), "CheckpointError", ("/nowhere/model",)),
        (("--backend", "gpu"), "BackendNotFound", ("gpu", "cpu")),
        (("--backend", "cpu:3"), "DeviceIndexError", ("cpu:3",)),
        (("--backend", "cpu:x"), "ConfigError", ("cpu:x",)),
        (("--backend", "ascend"), "BackendLoadError", ("ascend",)),
    ],
)
def test_bad_flags(
    tiny: Path, capsys: Capture, arguments: tuple[str, ...], kind: str, words: tuple[str, ...]
) -> None:
    command = ["generate", "Hi", "--model", str(tiny), *SMALL, *FIXED, *arguments]
    ends_in_one_clear_error(command, kind, words, capsys)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "words"), [("", ("empty",)), ("long " * 60, ("limit of 128",))])
def test_bad_prompts(tiny: Path, capsys: Capture, prompt: str, words: tuple[str, ...], stream: bool) -> None:
    command = ["generate", prompt, "--model", str(tiny), *SMALL, *FIXED, *(["--stream"] if stream else [])]
    ends_in_one_clear_error(command, "RequestError", words, capsys)


def test_an_empty_model_is_not_the_default(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a script whose variable is not set."""
    words = ("model.path", "it is empty", "leave it out")
    for flags in (("--model", ""), ("--set", "model.path=")):
        ends_in_one_clear_error(["generate", "Hi", "--backend", "cpu", *flags], "ConfigError", words, capsys)
    monkeypatch.setenv("TANDEM_MODEL_PATH", "")
    words = ("environment TANDEM_MODEL_PATH", *words)
    ends_in_one_clear_error(["bench", "decode", "--backend", "cpu"], "ConfigError", words, capsys)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors.index.json"])
def test_an_installation_without_the_shipped_model(
    tiny: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model = copied(tiny, tmp_path)
    monkeypatch.setattr("tandem.checkpoint.shipped.SHIPPED", model)
    (model / name).unlink()
    words = (str(model / name), "comes with Tandem", "install Tandem again", "--model")
    for command in (["generate", "Hi"], ["chat"], ["bench", "decode"]):
        ends_in_one_clear_error([*command, "--backend", "cpu"], "CheckpointError", words, capsys)


def test_other_commands_report_alike(tmp_path: Path, capsys: Capture) -> None:
    nowhere = str(tmp_path / "nowhere")
    ends_in_one_clear_error(["checkpoint", "inspect", nowhere], "CheckpointError", (nowhere,), capsys)
    file = str(tmp_path / "config.json")
    ends_in_one_clear_error(["checkpoint", "inventory", "--config", file], "ConfigError", (file,), capsys)


@pytest.mark.parametrize("arguments", [[], ["generate"], ["generate", "Hi", "--max-tokens", "many"], ["dance"]])
def test_usage_errors_are_argparse_s(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("usage: tandem")


def test_interrupted(tiny: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tandem.cli.generate.LLM", interrupt)
    assert generate(tiny) == 130
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err


@pytest.mark.parametrize(
    ("subject", "flags", "words"),
    [
        ("prefix-trace", ("--blocks", str(10**15)), ("CapacityError", "bench prefix-trace", "Unable to allocate")),
        ("prefix-trace", ("--blocks", "0"), ("--blocks",)),
        ("verify-schedule", ("--seed", "-1"), ("--seed", "-1 is not from 0 to")),
        ("verify-schedule", ("--drafts", "65"), ("--drafts", "65 is not from 1 to 64")),
        ("verify-schedule", ("--noise", "nan"), ("noise=nan",)),
        ("verify-schedule", ("--plot", "/no/such/folder/x.png"), ("--plot", "the plot cannot be drawn")),
        ("scheduler", ("--drafts", "-1"), ("speculation.draft_tokens", "-1")),
        ("scheduler", ("--running", str(10**8)), ("scheduler.max_slots", "65536")),
    ],
)  # fmt: skip
def test_odd_sizes_of_benches(
    tmp_path: Path, capsys: Capture, subject: str, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"input_length": 600, "hash_ids": [1, 2]}\n')
    small = {
        "prefix-trace": (str(trace),),
        "verify-schedule": ("--correlations", "0", "--batches", "1", "--shapes", "flat", "--steps", "1"),
        "scheduler": ("--steps", "1", "--rounds", "1"),
    }
    try:
        code: object = main(["bench", subject, *small[subject], *flags])
    except SystemExit as end:  # argparse's way
        code = end.code
    assert code == 2
    err = capsys.readouterr().err
    assert all(word in err for word in words), err


def test_every_round_computes_all_of_its_prompts(tiny: Path, capsys: Capture) -> None:
    """Three prompts of three blocks in each of three rounds; none is served from what a round before has left."""
    sizes = ("--batch", "3", "--prompt-tokens", "48", "--rounds", "2")
    blocks = ("--set", "cache.block_size=16", "--set", "cache.window_block=8")
    assert main(["bench", "prefill", "--model", str(tiny), *SMALL, *sizes, *blocks, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]
    assert found["steps"]["rows"] == 3 * 3 * 48 and found["prefix"]["hit_tokens"] == 0


def test_a_batch_runs_at_once_or_not_at_all(tiny: Path, capsys: Capture) -> None:
    assert main(["bench", "decode", "--model", str(tiny), *SMALL, "--batch", "5"]) == 2
    err = capsys.readouterr().err
    assert "--batch 5" in err and "4 requests run at once" in err

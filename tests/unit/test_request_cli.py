"""Flags of `tandem generate` for single sampling parameters, several outputs and logprobs of the prompt."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tandem.cli.generate import to_json
from tandem.cli.main import main
from tandem.cli.options import add_sampling_flags, sampling_params
from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput, TokenLogprob
from tandem.sampling.params import SamplingParams

Capture = pytest.CaptureFixture[str]
OPTIONS = {"model.max_model_len": 64, "scheduler.max_slots": 4}
SMALL = ("--backend", "cpu", "--set", "model.max_model_len=64", "--set", "scheduler.max_slots=4")
PARAMS: dict[str, Any] = {"max_tokens": 3, "seed": 5, "ignore_eos": True, "processed_logprobs": True, "top_k": 9}
FLAGS = ("--max-tokens", "3", "--seed", "5", "--ignore-eos", "--top-k", "9")


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TANDEM_BACKEND", "TANDEM_MODEL_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def llm(tiny: Path) -> LLM:
    return LLM(tiny, backend="cpu", options=OPTIONS)


def generate(tiny: Path, *arguments: str) -> int:
    return main(["generate", "Once upon", "--model", str(tiny), *SMALL, *FLAGS, *arguments])


def test_each_flag_sets_its_parameter() -> None:
    parser = argparse.ArgumentParser()
    add_sampling_flags(parser)
    flags = ["--min-p", "0.1", "--repetition-penalty", "1.2", "--presence-penalty", "-0.5"]
    flags += ["--frequency-penalty", "0.3"]
    flags += ["--bad-word", "no", "--bad-word", "never", "--min-tokens", "3", "--deadline", "9.5"]
    assert sampling_params(parser.parse_args(flags)) == SamplingParams(
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=-0.5,
        frequency_penalty=0.3,
        bad_words=("no", "never"),
        min_tokens=3,
        deadline_s=9.5,
    )
    assert sampling_params(parser.parse_args([])) == SamplingParams()


def test_several_outputs_and_all_logprobs(tiny: Path, llm: LLM, capsys: Capture) -> None:
    want = llm.generate("Once upon", SamplingParams(n=2, logprobs=2, prompt_logprobs=1, **PARAMS))[0]
    flags = ("--n", "2", "--logprobs", "2", "--processed-logprobs", "--prompt-logprobs", "1")
    assert generate(tiny, *flags, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    for found, copy in zip([result, *result["others"]], want.copies, strict=True):
        assert found["token_ids"] == list(copy.token_ids) and found["text"] == copy.text
        for entry, item in zip(found["logprobs"], copy.logprobs or (), strict=True):
            assert (entry["raw"], entry["processed"]) == (item.raw, item.processed)
            assert entry["top"] == {str(token): value for token, value in item.top.items()}
            assert entry["top_processed"] == {str(token): value for token, value in item.top_processed.items()}
    prompt = want.prompt_logprobs or ()
    assert [entry["token_id"] for entry in result["prompt_logprobs"]] == list(want.prompt_token_ids[1:])
    assert [entry["raw"] for entry in result["prompt_logprobs"]] == [item.raw for item in prompt]
    # For people: the prompt's table, then each output with its own.
    assert generate(tiny, *flags) == 0
    out, err = capsys.readouterr()
    assert "6 drawn" in err
    shown = [line.split()[0] for line in out.splitlines() if re.match(r" +(token|\d+)  ", line)]
    tables = [["token", *map(str, want.prompt_token_ids[1:])]]
    tables += [["token", *map(str, copy.token_ids)] for copy in want.copies]
    assert shown == [word for table in tables for word in table]
    for copy in want.copies:
        assert f"--- {copy.copy + 1} of 2\n{copy.text}\n" in out


def test_streams_of_several_outputs_name_the_copy(tiny: Path, llm: LLM, capsys: Capture) -> None:
    want = llm.generate("Once upon", SamplingParams(n=2, **PARAMS))[0]
    assert generate(tiny, "--n", "2", "--stream") == 2
    assert "leave out --stream" in capsys.readouterr().err
    assert generate(tiny, "--n", "2", "--stream", "--json") == 0
    *lines, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for copy in want.copies:
        assert "".join(line["text"] for line in lines if line["copy"] == copy.copy) == copy.text
    assert [last["text"], last["others"][0]["text"]] == [copy.text for copy in want.copies]


def test_a_banned_token_that_is_forced_has_no_finite_logprob() -> None:
    """Minus infinity is no JSON; it is shown as null."""
    output = RequestOutput(0, (1,), (2,), logprobs=(TokenLogprob(2, float("-inf"), None),))
    assert json.loads(json.dumps(to_json(output), allow_nan=False))["logprobs"][0]["raw"] is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--n", "0"), ("SamplingParams.n",)),
        (("--min-p", "1.5"), ("SamplingParams.min_p",)),
        (("--repetition-penalty", "0"), ("SamplingParams.repetition_penalty",)),
        (("--presence-penalty", "3"), ("SamplingParams.presence_penalty",)),
        (("--frequency-penalty", "nan"), ("SamplingParams.frequency_penalty",)),
        (("--bad-word", ""), ("SamplingParams.bad_words",)),
        (("--min-tokens", "9"), ("SamplingParams.min_tokens", "max_tokens (3)")),
        (("--deadline", "0"), ("SamplingParams.deadline_s",)),
        (("--processed-logprobs",), ("--processed-logprobs", "no logprobs are asked for")),
        (("--prompt-logprobs", "-1"), ("SamplingParams.prompt_logprobs",)),
        (("--draft-tokens", "many"), ("speculation.draft_tokens", "many")),
        (("--draft-tokens", "-1"), ("speculation.draft_tokens",)),
        (("--draft-tokens", "60"), ("speculation.draft_tokens", "60")),
    ],
)
def test_bad_values_are_named(tiny: Path, capsys: Capture, flags: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert generate(tiny, *flags) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and all(word in err for word in words), err


def test_draft_tokens(tiny: Path, capsys: Capture) -> None:
    texts = []
    for drafts in ("0", "2"):
        assert generate(tiny, "--temperature", "0", "--draft-tokens", drafts, "--json") == 0
        texts.append(json.loads(capsys.readouterr().out)["text"])
    assert texts[0] == texts[1]

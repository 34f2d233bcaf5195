"""Prefill here, decode there: requests with their cache pages go through files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.runner import CompositeBackend

from tandem.checkpoint.tiny import make_tiny
from tandem.cli.main import main
from tandem.config import EngineConfig, load_config
from tandem.engine.llm import LLM
from tandem.errors import RequestError, TraceError
from tandem.parity.exchange import Continuation, compare_continued, export_pages, import_pages, read_states
from tandem.parity.trace import Trace, header_digest
from tandem.sampling.params import SamplingParams

PROMPTS = [list(range(5, 26)), [7, 8, 9]]
PARAMS = SamplingParams(max_tokens=5, temperature=0.8, seed=3)
OTHER_SIZES = {"cache.block_size": 16, "cache.window_block": 8, "scheduler.max_slots": 5, "model.max_model_len": 99}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny(path, 0)
    return path


def engine(model: Path, **options: object) -> EngineConfig:
    return load_config(env={}, args={"model.path": str(model), "backend.name": "cpu"} | options)


@pytest.fixture(scope="module")
def pages(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("out") / "pages"
    export_pages(engine(model), PROMPTS, PARAMS, path)
    return path


def test_decoding_elsewhere_gives_the_tokens_of_an_undivided_run(model: Path, pages: Path) -> None:
    llm = LLM(model, backend="cpu", options={"speculation.draft_tokens": 0})  # as pages are made and continued
    whole = llm.generate(PROMPTS, PARAMS)
    llm.close()
    there = import_pages(engine(model, **OTHER_SIZES), pages, CompositeBackend(use_native=False))
    assert [c.one for c in compare_continued(Trace.open(pages), there)] == [output.token_ids for output in whole]
    assert [output.token_ids for output in there] == [output.token_ids for output in whole]
    assert [output.text for output in there] == [output.text for output in whole]
    assert [output.finish_reason for output in there] == ["length", "length"]


def test_the_pages_cover_the_prompt(pages: Path) -> None:
    """The first token was drawn from the prompt, so it has no page yet; main entries of layer 1 cover two tokens."""
    states = read_states(Trace.open(pages))
    assert [state.num_computed for state in states] == [21, 3]
    assert [len(state.tokens) for state in states] == [22, 4]
    assert [state.device["main.1"].shape[0] for state in states] == [21 // 2, 3 // 2]
    assert [state.device["main.4"].shape[0] for state in states] == [21, 3]
    # nvfp4 of 64 channels: half a byte each, and a scale for every 16.
    assert states[0].device["main.4"].shape[1] == 64 // 2 + 64 // 16


def test_pages_that_are_read_are_used(model: Path, pages: Path, tmp_path: Path) -> None:
    """With the window pages of one layer zeroed, other tokens come out: nothing is computed again."""
    from tandem.parity.values import encode
    from tandem.parity.writer import TraceWriter

    trace = Trace.open(pages)
    writer = TraceWriter(tmp_path / "zeroed", {"model": trace.header["model"]})
    states = json.loads(json.dumps(trace.header["states"]))
    for state in states:
        for name, tree in state["arrays"].items():
            tensor = trace.tensor(tree, name)
            state["arrays"][name] = encode(tensor * 0 if "window" in name else tensor, writer.put)
    writer.close(states=states)
    want = import_pages(engine(model), pages)
    have = import_pages(engine(model), tmp_path / "zeroed")
    assert [output.token_ids for output in have] != [output.token_ids for output in want]


def test_another_model_is_refused(pages: Path, tmp_path: Path) -> None:
    make_tiny(tmp_path / "other", 1)
    with pytest.raises(TraceError, match="cache pages are of another model"):
        import_pages(engine(tmp_path / "other"), pages)


def test_commands(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.jsonl").write_text("[7, 8, 9]")
    flags = ["--backend", "cpu", "--model", str(model), "--json"]
    words = ["--prompts", str(tmp_path / "p.jsonl"), "--out", str(tmp_path / "pages"), "--max-tokens", "4"]
    assert main(["parity", "kv-export", *flags, *words]) == 0
    assert json.loads(capsys.readouterr().out)["tokens_computed"] == [3]
    assert main(["parity", "kv-import", str(tmp_path / "pages"), *flags]) == 0
    (request,) = json.loads(capsys.readouterr().out)["requests"]
    assert len(request["token_ids"]) == 4 and request["finish_reason"] == "length"
    assert main(["parity", "kv-import", str(tmp_path / "pages"), *flags[:-1]]) == 0
    assert "request 0: the same 4 tokens as the exporting side" in capsys.readouterr().out


def test_what_both_sides_drew_is_compared() -> None:
    assert Continuation((1, 2), (1, 2)).first is None
    assert Continuation((1, 2, 3), (1, 4, 3)).first == 1
    assert "token 1 differs from the exporting side: 2 there, 4 here" in Continuation((1, 2), (1, 4)).told()
    assert "token 2 differs from the exporting side: 3 there, the end here" in Continuation((1, 2, 3), (1, 2)).told()


def test_a_request_that_ends_at_once_cannot_be_exported(model: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="export it before it ends"):
        export_pages(engine(model), [[7, 8, 9]], SamplingParams(max_tokens=1), tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (["numbers", "prompt_len"], 99, "prompt_len: 99 of 22 tokens"),
        (["numbers", "num_computed"], -1, "expected an integer from 0"),
        (["sampling", "temperature"], "hot", "sampling.temperature is hot"),
        (["sampling", "top_p"], 7, "top_p: it is 7"),
        (["sampling"], {}, "it lacks ignore_eos"),
        (["arrays", "evil"], None, "expected an object"),
        (["arrays"], {}, "its arrays lack the tokens"),
        (["stop_strings"], "no list", "expected a list"),
    ],
)
def test_states_that_do_not_fit_are_refused(
    pages: Path, tmp_path: Path, place: list[str], value: object, message: str
) -> None:
    for file in pages.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    header = json.loads((tmp_path / "header.json").read_text())
    target = header["states"][0]
    for name in place[:-1]:
        target = target[name]
    target[place[-1]] = value
    header["sha256"] = header_digest(header)
    (tmp_path / "header.json").write_text(json.dumps(header))
    with pytest.raises(TraceError) as caught:
        read_states(Trace.open(tmp_path))
    assert message in str(caught.value)

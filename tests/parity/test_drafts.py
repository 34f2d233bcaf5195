"""Traces with drafts: what is recorded, that it replays, how flips of drafts are judged, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import traces
from support.speculative import seed_for, signed

from tandem.backends.cpu.backend import CpuBackend
from tandem.checkpoint.tiny import make_tiny
from tandem.config import load_config
from tandem.conformance.calls import bits
from tandem.conformance.engine_harness import MODEL, tokens
from tandem.contract.opspec import OpFunction
from tandem.engine.llm import LLM
from tandem.errors import ConfigError
from tandem.parity import edges, report
from tandem.parity.decisions import choices
from tandem.parity.diff import diff
from tandem.parity.freerun import swap
from tandem.parity.legal import LegalNoise
from tandem.parity.pairs import Side
from tandem.parity.record import record
from tandem.parity.records import Call, Record
from tandem.parity.replay import replay
from tandem.parity.trace import Trace
from tandem.parity.values import leaves
from tandem.parity.verdict import verdict
from tandem.sampling.params import SamplingParams
from tandem.sampling.rng import uniform

DRAFTS = 3
PROMPTS = [list(tokens(1, 4)), list(tokens(2, 3))]
DRAWN = SamplingParams(max_tokens=5, temperature=1.2, top_k=4, seed=3, ignore_eos=True)
GREEDY = SamplingParams(max_tokens=5, temperature=0.0, seed=3, ignore_eos=True)


class Refuses(CpuBackend):
    """Takes no draft."""

    def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
        if op != "spec_verify":
            return function

        def run(*args: Any, **named: Any) -> Any:
            token, taken, *rest = function(*args, **named)
            return token, torch.zeros_like(taken), *rest

        return run


def options(path: Path, **more: Any) -> Any:
    drafts = {"speculation.draft_tokens": DRAFTS}
    return load_config(env={}, args={"model.path": str(path), "backend.name": "cpu"} | drafts | more)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parity") / "model"
    make_tiny(path, 0, MODEL)
    return path


@pytest.fixture(scope="module")
def recorded(model: Path) -> tuple[Trace, list[tuple[int, ...]]]:
    """A trace with drafts, and what its prompts gave."""
    made = record(options(model), PROMPTS, DRAWN, model.parent / "trace", 1 << 30, show_progress=False)
    return Trace.open(model.parent / "trace"), [output.token_ids for output in made.outputs]


def replayed(trace: Trace, backend: CpuBackend, mode: str, out: Path) -> Side:
    assert replay(trace, backend, mode, out, show_progress=False)["errors"] == 0
    return Side(Trace.open(out, trace))


def test_the_trace_tells_what_the_engine_did(recorded: tuple[Trace, list[tuple[int, ...]]], model: Path) -> None:
    trace, drawn = recorded
    llm = LLM(config=options(model))
    try:
        assert [output.token_ids for output in llm.generate(PROMPTS, DRAWN)] == drawn
    finally:
        llm.close()
    side, found, taken = Side(trace), dict[str, int](), 0
    emitted = []
    for entry in trace.records:
        for made in choices(entry, side.call(entry.id), side.find):
            found[made.kind] = found.get(made.kind, 0) + sum(row is not None for row in made.chosen)
            taken += made.kind == "accepted" and made.chosen.count(frozenset([1]))
        if entry.op == "aux.accept":
            emitted.append(side.call(entry.id).outputs["emitted"].tolist())
    # In the order of the requests; in the last step only one of them may be left.
    assert len(emitted) == len(trace.header["steps"])
    assert found["draft"] == DRAFTS * sum(map(len, emitted)) and found["emitted"] == sum(map(len, emitted))
    assert found["token"] == sum(map(sum, emitted))
    assert taken == sum(map(sum, emitted)) - sum(map(len, emitted)) > 0
    assert found["accepted"] > taken  # some were refused
    # Each request's rows begin where its tokens end, and have room for its drafts.
    lengths = dict(enumerate(map(len, PROMPTS)))
    for rows, tokens_of_step in zip(trace.header["steps"], emitted, strict=True):
        for (request, start, count), more in zip(rows, tokens_of_step, strict=True):
            first = start == 0
            assert start == (0 if first else lengths[request] - 1) and more <= (1 if first else count)
            lengths[request] += more
    assert all(lengths[n] >= len(prompt) + DRAWN.max_tokens for n, prompt in enumerate(PROMPTS))


def test_a_free_replay_takes_the_same_drafts(recorded: tuple[Trace, list[tuple[int, ...]]], tmp_path: Path) -> None:
    trace, _ = recorded
    one, two = Side(trace), replayed(trace, CpuBackend(use_native=True), "free", tmp_path / "again")
    verified = [entry for entry in trace.records if entry.op in ("spec_verify", "draft_sample", "aux.draft_commit")]
    assert verified
    for entry in verified:
        ours, theirs = one.call(entry.id), two.call(entry.id)
        for mine, other in ((ours.inputs, theirs.inputs), (ours.outputs, theirs.outputs)):
            assert {name: bits(value).tolist() for name, value in leaves(mine).items()} == {
                name: bits(value).tolist() for name, value in leaves(other).items()
            }, entry


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["local", "free"])
def test_both_replays_pass(recorded: tuple[Trace, list[tuple[int, ...]]], tmp_path: Path, mode: str) -> None:
    trace, _ = recorded
    one, two = Side(trace), replayed(trace, CpuBackend(use_native=True), mode, tmp_path / mode)
    found = diff(one, two, legal=LegalNoise(one))
    assert verdict(found, trace.path).status == "PASS" and not found.flips
    judged, ours, theirs = found.drafts
    assert judged > ours == theirs > 0
    told = f"drafts: {judged} judged, A took {ours}, B took {ours}"
    assert told in report.summary(found, verdict(found, trace.path)) and told in report.page(
        found, verdict(found, trace.path)
    )


@pytest.mark.slow
def test_who_takes_no_draft_is_named(recorded: tuple[Trace, list[tuple[int, ...]]], tmp_path: Path) -> None:
    trace, _ = recorded
    one, two = Side(trace), replayed(trace, Refuses(use_native=True), "free", tmp_path / "refuses")
    found = diff(one, two, legal=LegalNoise(one))
    outcome = verdict(found, trace.path)
    assert outcome.status == "FAIL" and "spec_verify" in outcome.headline()
    judged, ours, theirs = found.drafts
    assert ours > theirs == 0 and judged >= ours
    first = next(flip for flip in found.flips if flip.kind == "accepted")
    assert (first.verdict, first.gone, first.came) == ("defect", (1,), (0,))
    assert any(flip.kind == "emitted" and flip.verdict != "tie" for flip in found.flips)
    name = f"accepted:{first.step}:{first.row}"
    swapped = swap(one, Refuses(use_native=True), name)
    assert swapped is not None and swapped.first is not None and swapped.first.op == "spec_verify"


# -- how near a decision was -----------------------------------------------------------------------------------


def verify(at: float, case: int, coupled: bool = False, temperature: float = 1.0) -> Call:
    """One row over two tokens: Q = (3/4, 1/4), P = (1/4, 3/4), the draft is token 1; the random number of a case."""
    target, offer = np.log([[0.75, 0.25]]), [[1 << 28, 3 << 28]]
    i32 = torch.int32
    seed = signed(seed_for(int(at * 2**53), 7, case))
    data = {
        "logits": torch.tensor(target, dtype=torch.float32) * temperature,
        "temperature": torch.tensor([temperature]),
        "top_p": torch.ones(1),
        "top_k": torch.tensor([-1], dtype=i32),
        "min_p": torch.zeros(1),
        "seed": torch.tensor([seed]),
        "position": torch.tensor([7]),
        "forced": torch.tensor([-1], dtype=i32),
        "drafts": torch.tensor([1], dtype=i32),
        "proposal": torch.tensor(offer, dtype=i32),
        "draft_row": torch.tensor([0], dtype=i32),
        "coupled": coupled,
        "filtered": False,
    }
    return traces.run("spec_verify", data)


@pytest.mark.parametrize(("at", "taken"), [(0.3, 1), (0.5, 0)])
def test_a_draft_is_taken_up_to_the_ratio_of_its_masses(at: float, taken: int) -> None:
    """u P < Q: 0.75 u < 0.25.  A logit of the draft moves Q by Q (1 - Q) = 3/16; at temperature 2 half of that."""
    call = verify(at, 2)
    assert call.outputs["accepted"].tolist() == [taken]
    edge = edges.accepted(call, 0)
    assert edge is not None and edge.distance == pytest.approx(abs(0.75 * at - 0.25), abs=1e-6)
    assert edge.unit == pytest.approx(3 / 16, abs=1e-6)
    warm = edges.accepted(verify(at, 2, temperature=2.0), 0)
    assert warm is not None and warm.unit == pytest.approx(3 / 32, abs=1e-6)
    # The token is the draft's, or would have been: as near as the acceptance.
    assert edges.verified(call, 0, 1 - int(call.outputs["token"][0])) == edge


@pytest.mark.parametrize(("at", "token"), [(0.7, 0), (0.8, 1)])
def test_a_coupled_draft_is_as_near_as_the_draw(at: float, token: int) -> None:
    """The row draws token 0 below u = 3/4; the border moves by 3/4 * 1/4."""
    call = verify(at, 0, coupled=True)
    assert call.outputs["token"].tolist() == [token] and call.outputs["accepted"].tolist() == [token]
    for edge in (edges.accepted(call, 0), edges.verified(call, 0, 1 - token)):
        assert edge is not None
        assert edge == pytest.approx((abs(at - 0.75), 3 / 16), abs=1e-6)


def test_what_is_left_has_borders_of_its_own() -> None:
    """Q = (1/2, 3/8, 1/8), P = (1/4, 1/8, 5/8): refused is token 2, left are (1/4, 1/4), so the border is 1/2.

    Seven eighths of Q lie where something is left, and one half is left: a logit moves the border by up to 7/4.
    """
    base = verify(0.0, 2)
    inputs = base.inputs | {
        "logits": torch.tensor(np.log([[0.5, 0.375, 0.125]]), dtype=torch.float32),
        "proposal": torch.tensor([[2 << 27, 1 << 27, 5 << 27]], dtype=torch.int32),
        "drafts": torch.tensor([2], dtype=torch.int32),
    }
    seed = next(seed for seed in range(99) if uniform(seed, 7, 2) > 0.2)  # refuses the draft: u P >= Q
    call = traces.run("spec_verify", inputs | {"seed": torch.tensor([seed])})
    token = int(call.outputs["token"][0])
    edge = edges.verified(call, 0, 1 - token)
    assert edge is not None and edge.distance == pytest.approx(abs(uniform(seed, 7, 1) - 0.5), abs=1e-6)
    assert edge.unit == pytest.approx(7 / 4, abs=1e-5)
    assert (uniform(seed, 7, 1) >= 0.5) == bool(token)


def test_greedy_rows_compare_logits_and_rows_behind_a_refusal_decide_nothing() -> None:
    """Three rows of a request: draft 1 is the likeliest, draft 0 is not; the third is not reached."""
    one = verify(0.5, 0).inputs
    single = {name: value for name, value in one.items() if isinstance(value, torch.Tensor) and value.dim() == 1}
    rows = {name: value.repeat(3) for name, value in single.items()}
    inputs = one | rows | {
        "logits": torch.tensor([[0.0, 2.0], [1.0, 4.0], [0.0, 1.0]]),
        "temperature": torch.zeros(3),
        "drafts": torch.tensor([1, 0], dtype=torch.int32),
        "proposal": torch.tensor([[0, 1 << 30], [1 << 30, 0]], dtype=torch.int32),
        "draft_row": torch.tensor([0, 1, -1], dtype=torch.int32),
    }
    call = traces.run("spec_verify", inputs)
    place = Record(id=0, step=0, call=0, op="spec_verify", site="sampler", layer=None, rows=3, attrs={}, sources={},
                   views={}, caches={}, parent=None)  # fmt: skip
    accepted, token = choices(place, call, lambda number: None)
    assert accepted.chosen == [frozenset([1]), frozenset([0]), None]
    assert token.chosen == [frozenset([1]), frozenset([1]), None]
    assert accepted.scores[:2].tolist() == [[0.0, 2.0], [4.0, 1.0]]
    assert accepted.edge is not None and accepted.edge(0, 0) is None


def test_noise_reaches_drafts_through_states_of_bf16(recorded: tuple[Trace, list[tuple[int, ...]]]) -> None:
    """What drafts are made from is held by slot, from step to step."""
    side = Side(recorded[0])
    made = [record for record in side.trace.records if choices(record, side.call(record.id), side.find)]
    last = next(record for record in reversed(made) if record.op == "draft_sample")
    before = [side.records[number] for number in side.upstream(last)]
    states = [side.call(record.id).outputs["x"] for record in before if record.op == "scatter_rows"]
    assert any(state.dtype is torch.bfloat16 for state in states)
    noise = LegalNoise(side)(last)
    assert len(noise) == last.rows and np.isfinite(noise).all() and noise.max() > 0


# -- what cannot be recorded -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("scheduler.overlap", "on", "two would run at once"),
        ("speculation.verify", "scheduled", "measured times"),
    ],
)
def test_runs_that_no_trace_tells_are_refused(model: Path, tmp_path: Path, key: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        record(options(model, **{key: value}), PROMPTS, GREEDY, tmp_path / "trace")
    assert key in caught.value.where and words in caught.value.why
    assert not (tmp_path / "trace").exists()


def test_without_asking_nothing_is_drafted(model: Path, tmp_path: Path) -> None:
    plain = load_config(env={}, args={"model.path": str(model), "backend.name": "cpu"})
    record(plain, PROMPTS[:1], GREEDY, tmp_path / "trace", 1 << 30, show_progress=False)
    assert {entry.op for entry in Trace.open(tmp_path / "trace").records}.isdisjoint(
        {"spec_verify", "draft_sample", "aux.draft_commit", "aux.verify_rows"}
    )

"""Differences of traces made by hand: what is a tie, what a defect, and what the reader is told."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.traces import run, write

from tandem.contract.opspec import OP_TABLE
from tandem.contract.registry import open_backend
from tandem.errors import TraceError
from tandem.parity import report
from tandem.parity.diff import Difference, diff
from tandem.parity.pairs import Side
from tandem.parity.records import Call, Record
from tandem.parity.replay import replay
from tandem.parity.trace import Trace
from tandem.parity.verdict import Verdict, verdict
from tandem.parity.writer import TraceWriter

HEAD = Record(4, 0, 4, "linear", "head", None, 3)
SAMPLE = Record(5, 0, 5, "sample", "sampler", None, 3, sources={"logits": (4, "y")})


def head(weight_row: float = 1.0) -> Call:
    """Logits of three rows over four tokens: the input itself, but for the second token."""
    data = dict(OP_TABLE["linear"].cases[0].build(0))
    kind, fmt = type(data["weight"]), data["weight"].weight
    identity = torch.eye(4, dtype=torch.bfloat16)
    identity[1, 1] = weight_row
    weight = kind(data["weight"].kind, fmt._replace(data=identity, scale=None, fmt=_BF16), (4, 4))
    x = torch.tensor([[8.0, 7.0, 1.0, 0.0], [0.0, 0.0, 4.0, 1.0], [3.0, 3.0, 0.0, 0.0]], dtype=torch.bfloat16)
    return run("linear", {"x": x, "weight": weight, "out_dtype": torch.float32})


_BF16 = next(case.build(0)["weight"].weight.fmt for case in OP_TABLE["linear"].cases if "bf16" in case.name)


def drawn(logits: torch.Tensor) -> Call:
    """Greedy tokens."""
    rows = len(logits)
    return run(
        "sample",
        {
            "logits": logits, "temperature": torch.zeros(rows), "top_p": torch.ones(rows),
            "top_k": torch.full((rows,), -1, dtype=torch.int32), "seed": torch.zeros(rows, dtype=torch.int64),
            "position": torch.arange(rows), "filtered": False,
        },
    )  # fmt: skip


def two(tmp_path: Path, moved: torch.Tensor) -> tuple[Difference, Verdict]:
    """The comparison of right logits with the same logits moved, and the tokens drawn from each."""
    right = head()
    wrong = Call(right.inputs, {"y": right.outputs["y"] + moved})
    one = write(tmp_path / "a", [(HEAD, right), (SAMPLE, drawn(right.outputs["y"]))])
    other = write(tmp_path / "b", [(HEAD, wrong), (SAMPLE, drawn(wrong.outputs["y"]))], backend="two")
    found = diff(Side(one), Side(other))
    return found, verdict(found, one.path)


def move(row: int, token: int, amount: float) -> torch.Tensor:
    """Logits moved in one place."""
    moved = torch.zeros(3, 4)
    moved[row, token] = amount
    return moved


def test_equal_traces_pass(tmp_path: Path) -> None:
    found, outcome = two(tmp_path, torch.zeros(3, 4))
    assert (outcome.status, outcome.partial) == ("PASS", "")
    assert all(op.same for op in found.ops)
    assert found.decided == {"argmax": (3, 0), "token": (3, 0)}
    assert found.model is not None
    assert (found.model.divergence.value, found.model.agreement.value, found.divergent) == (0.0, 1.0, None)


def test_a_flip_between_equal_logits_is_a_tie(tmp_path: Path) -> None:
    """Row 2 has 3.0 twice; one unit in the last place more for the second token lies within the class."""
    found, outcome = two(tmp_path, move(2, 1, 2.0**-22))
    assert outcome.status == "TIE"
    assert [(flip.kind, flip.row, flip.gone, flip.came, flip.margin, flip.verdict) for flip in found.flips] == [
        ("argmax", 2, (0,), (1,), 0.0, "tie"),
        ("token", 2, (0,), (1,), 0.0, "inherited"),
    ]
    assert found.divergent == 0


def test_a_flip_over_a_wide_margin_is_a_defect_of_its_op(tmp_path: Path) -> None:
    found, outcome = two(tmp_path, move(0, 1, 1.5))
    assert (outcome.status, outcome.op, outcome.side, outcome.index) == ("FAIL", "linear", "two", (0, 1))
    flip = found.flips[0]
    assert (flip.kind, flip.gone, flip.came, flip.margin, flip.verdict) == ("argmax", (0,), (1,), 1.0, "defect")
    assert flip.units > 1e5  # the rows are exact, so the floor is the rounding of f32
    assert outcome.flip == flip


def test_a_token_drawn_without_logits_is_a_decision(tmp_path: Path) -> None:
    """Its scores are the products with the head, made again: 8 and 7 in row 0, which is a margin of 1."""
    given = head().inputs
    numbers = {name: value for name, value in drawn(torch.zeros(3, 4)).inputs.items() if name != "logits"}
    right = run("head_sample", {"x": given["x"], "head": given["weight"], **numbers, "greedy": True})
    assert right.outputs["token"].tolist() == [0, 2, 0]
    wrong = Call(right.inputs, {"token": torch.tensor([1, 2, 0], dtype=torch.int32)})
    record = Record(5, 0, 5, "head_sample", "head", None, 3)
    one, other = write(tmp_path / "a", [(record, right)]), write(tmp_path / "b", [(record, wrong)], backend="two")
    found = diff(Side(one), Side(other))
    outcome = verdict(found, one.path)
    assert (outcome.status, outcome.op, outcome.side) == ("FAIL", "head_sample", "two")
    (flip,) = found.flips
    assert (flip.kind, flip.row, flip.gone, flip.came, flip.margin) == ("token", 0, (0,), (1,), 1.0)
    assert flip.verdict == "defect" and flip.units > 1e5 and found.divergent == 0
    assert found.decided == {"token": (3, 1)}


def test_a_flip_that_no_recorded_op_explains(tmp_path: Path) -> None:
    """The tokens are right for the logits of each side, and the logits came from somewhere else."""
    logits = head().outputs["y"]
    alone = dataclasses.replace(SAMPLE, sources={})
    one = write(tmp_path / "a", [(alone, drawn(logits))])
    other = write(tmp_path / "b", [(alone, drawn(logits + move(0, 1, 1.5)))], backend="two")
    outcome = verdict(diff(Side(one), Side(other)), one.path)
    assert (outcome.status, outcome.op, outcome.metric) == ("FAIL", "sample", "margin")
    assert "record more layers" in outcome.reason


def test_local_and_inherited_error_are_kept_apart(tmp_path: Path) -> None:
    """A op that errs, and a right op after it which is fed the error."""
    data = OP_TABLE["rms_norm"].cases[0].build(0)
    first, second = Record(1, 0, 1, "rms_norm", "norm", 0, 1), Record(2, 0, 2, "rms_norm", "norm", 1, 1)
    right = run("rms_norm", data | {"quant": False})
    after = run("rms_norm", data | {"quant": False, "x": right.outputs["y"]})
    wrong = Call(right.inputs, {"y": (right.outputs["y"].float() * 1.25).to(torch.bfloat16)})
    wrong.outputs["y"][0, 0] *= 2
    fed = run("rms_norm", data | {"quant": False, "x": wrong.outputs["y"]})
    one = write(tmp_path / "a", [(first, right), (second, after)])
    other = write(tmp_path / "b", [(first, wrong), (second, fed)], backend="two")
    found = diff(Side(one), Side(other))
    erring, carrying = found.ops
    assert erring.outside is not None and carrying.outside is None
    assert (erring.inherited, carrying.inherited) == (0.0, erring.free)
    assert erring.free >= 0.25
    assert carrying.free > 0.0
    assert carrying.amplification == pytest.approx(carrying.free / erring.local)
    assert verdict(found, one.path).record == 1


def test_other_models_are_refused_and_other_flags_told(tmp_path: Path) -> None:
    calls = [(HEAD, head())]
    one = write(
        tmp_path / "a", calls, flags={"model": {"seed": 1}, "backend": {"name": "one"}}, left_out={"records": 7}
    )
    with pytest.raises(TraceError, match="model.sha256 differs: m and n"):
        diff(Side(one), Side(write(tmp_path / "b", calls, model={"sha256": "n", "config": "c", "tokenizer": "t"})))
    flags = {"model": {"seed": 2}, "backend": {"name": "two"}}
    outcome = verdict(diff(Side(one), Side(write(tmp_path / "c", calls, flags=flags))), one.path)
    assert outcome.status == "PASS"
    assert sum("differs" in note for note in outcome.notes) == 1  # the backend is meant to differ
    assert outcome.notes[0].startswith("flags.model.seed differs: 1 and 2; ")
    assert outcome.notes[1] == "the recording left out 7 calls to keep its budget; they are not compared"
    with pytest.raises(TraceError, match="no record in common"):
        diff(Side(one), Side(write(tmp_path / "d", [(SAMPLE, drawn(head().outputs["y"]))])))


def test_stop_reasons(tmp_path: Path) -> None:
    ends: list[dict[str, Any]] = [{"finish_reason": "stop", "stop_reason": 2}, {"finish_reason": "length"}]
    one = write(tmp_path / "a", [(HEAD, head())], requests=[ends[0], ends[0]])
    other = write(tmp_path / "b", [(HEAD, head())], requests=[ends[0], ends[1]])
    found = diff(Side(one), Side(other))
    assert found.stops == [(1, "stop (2)", "length")]
    assert verdict(found, one.path).headline().startswith("PASS (PARTIAL: requests ended for different reasons): ")


def test_a_part_of_a_run_is_called_so(tmp_path: Path) -> None:
    """A has a call that B lacks, or the other way round: what was compared passes, and the first line says how much."""
    call, alone = head(), dataclasses.replace(SAMPLE, sources={})
    both = write(tmp_path / "both", [(HEAD, call), (alone, drawn(call.outputs["y"]))])
    short = write(tmp_path / "short", [(HEAD, call)], backend="two")
    for one, other, counts in ((both, short, "1 of A's 2 and of B's 1"), (short, both, "1 of A's 1 and of B's 2")):
        outcome = verdict(diff(Side(one), Side(other)), one.path)
        assert outcome.status == "PASS" and outcome.partial == f"{counts} calls compared"
        assert outcome.headline().startswith(f"PASS (PARTIAL: {counts} calls compared): ")
        assert outcome.to_json()["partial"] and any("not compared" in note for note in outcome.notes)


def test_the_command_of_a_failure(tmp_path: Path) -> None:
    _, outcome = two(tmp_path, move(0, 1, 1.5))
    replay = f"tandem parity replay {tmp_path}/a --backend two --mode local --op linear --step 0 --out a-linear"
    assert outcome.command == f"{replay} && tandem parity diff {tmp_path}/a a-linear"


def test_the_error_word_for_word() -> None:
    outcome = Verdict(
        "FAIL", "mydevice", "rms_norm", "layers.7.attn.q_norm", 7, 3, 812, "y", "ulp", 3.0, 1.0, 2.0**-8, (41, 5),
        command="tandem parity replay A.trace --op rms_norm",
    )  # fmt: skip
    assert str(outcome.error()) == (
        "op 'rms_norm' layer 7 step 3 row 41: 3 ulp > U(1). "
        "Where: layers.7.attn.q_norm, record 812, backend 'mydevice' (B), output y first at [41, 5]. "
        "Why: floor=0.00391; the call is judged on the inputs it was given, so nothing in it is inherited. "
        "Fix: rerun: tandem parity replay A.trace --op rms_norm."
    )
    assert outcome.headline() == "FAIL: op 'rms_norm' layer 7 step 3 row 41: 3 ulp > U(1)"


def test_both_sides_outside(tmp_path: Path) -> None:
    """A fault that both backends share is no difference, and still no truth."""
    right = head()
    wrong = [(HEAD, Call(right.inputs, {"y": right.outputs["y"] + 1}))]
    one, other = write(tmp_path / "a", wrong), write(tmp_path / "b", wrong, backend="two")
    outcome = verdict(diff(Side(one), Side(other)), one.path)
    assert (outcome.status, outcome.side) == ("FAIL", "two")
    assert outcome.reason.endswith("; the recording is outside its class too")


def test_an_error_of_the_recording_alone(tmp_path: Path) -> None:
    """A is wrong and B is right: A is named, and B is not told to be looked at."""
    right = head()
    wrong = Call(right.inputs, {"y": right.outputs["y"] + move(1, 2, 1.0)})
    one, other = write(tmp_path / "a", [(HEAD, wrong)]), write(tmp_path / "b", [(HEAD, right)], backend="two")
    found = diff(Side(one), Side(other))
    outcome = verdict(found, one.path)
    assert (outcome.status, outcome.side, outcome.own, outcome.index) == ("FAIL", "one", True, (1, 2))
    text = "A's recording is outside its class, B is not judged by it: op 'linear' step 0 row 1"
    assert outcome.headline().startswith(f"FAIL: {text}") and "backend 'one' (A)" in outcome.error().where
    assert "--backend one" in outcome.command and "--backend two" not in outcome.command
    lines = report.summary(found, outcome).splitlines()
    listed = lines.index("A's own calls outside their class (1):")
    assert lines[listed + 1].startswith("  linear head step 0, record 4: y ")
    assert text in report.page(found, outcome).replace("&#x27;", "'")
    leaf = found.to_json()["ops"][0]["local_a"][0]
    assert (leaf["got"], leaf["want"]) == (5.0, 4.0)


def test_an_error_of_b_is_blamed_before_one_of_a(tmp_path: Path) -> None:
    right, later = head(), dataclasses.replace(HEAD, id=6, step=1, call=6)
    wrong = Call(right.inputs, {"y": right.outputs["y"] + 1})
    one = write(tmp_path / "a", [(HEAD, wrong), (later, right)])
    other = write(tmp_path / "b", [(HEAD, right), (later, wrong)], backend="two")
    outcome = verdict(diff(Side(one), Side(other)), one.path)
    assert (outcome.side, outcome.own, outcome.record) == ("two", False, 6)
    assert any(note.startswith("A's recording is outside its class in 1 calls, first in op 'linear'")
               for note in outcome.notes)  # fmt: skip


def test_cache_pages_are_no_calls(tmp_path: Path) -> None:
    TraceWriter(tmp_path / "pages", {"backend": "one"}).close(states=[])
    with pytest.raises(TraceError, match="it is no op trace.*kv-import"):
        Side(Trace.open(tmp_path / "pages"))
    with pytest.raises(TraceError, match="it is no op trace.*kv-import"):
        replay(Trace.open(tmp_path / "pages"), open_backend("cpu"), "local", tmp_path / "out")


def test_results_hold_what_the_page_shows(tmp_path: Path) -> None:
    found, outcome = two(tmp_path, move(0, 1, np.inf))
    report.write(tmp_path / "out", found, outcome)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["verdict"]["status"] == "FAIL"
    assert results["ops"][0]["local_b"][0]["value"] == "inf"
    assert results["drafts"] == {"judged": 0, "taken_a": 0, "taken_b": 0}
    assert len((tmp_path / "out" / "summary.txt").read_text().splitlines()) < 60

"""The kit itself: what it catches, its filter, its levels, its report and its command line."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.registered import register
from support.runner import CompositeBackend

from tandem.cli.main import main
from tandem.conformance import claims
from tandem.conformance.compare import Measured
from tandem.conformance.kit import run
from tandem.conformance.report import Report, Result, failure_lines, page, summary, table_rows
from tandem.conformance.select import selected
from tandem.contract.capabilities import Capabilities, OpCap
from tandem.contract.opspec import OP_TABLE, OpFunction
from tandem.errors import ConfigError

Capture = pytest.CaptureFixture[str]


class Faulty(CompositeBackend):
    """Brings one op of its own."""

    name = "faulty"
    _op = ""
    _body: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__(use_native=False)

    @classmethod
    def open(cls, device_id: int, options: Mapping[str, Any]) -> Faulty:
        return cls()

    @property
    def caps(self) -> Capabilities:
        return dataclasses.replace(super().caps, ops={type(self)._op: OpCap("fused")})

    def implementation(self, op: str) -> OpFunction | None:
        return type(self)._body if op == type(self)._op else None


def faulty(op: str, body: Callable[..., Any]) -> type[Faulty]:
    return type(f"Faulty{op}", (Faulty,), {"_op": op, "_body": staticmethod(body)})


def _two_places_off(trunk: torch.Tensor) -> torch.Tensor:
    """Rows after the first are two last places of bf16 too large."""
    mean = OP_TABLE["hc_mean"].reference(trunk)
    mean[1:] = (mean[1:].view(torch.int16) + 2).view(torch.bfloat16)
    return mean


def test_a_failure_names_case_row_error_limit_and_command() -> None:
    report = run(faulty("hc_mean", _two_places_off)(), "L1", case="hc_mean/")
    failed = {result.name: result for result in report.failures}
    assert not report.holds and report.claim == "none"
    # The first row is right, and of one row and none else there is nothing to find.
    assert "hc_mean/random-T1/values" not in failed
    text = failed["hc_mean/random-T17/values"].failure
    assert text is not None and "ulp, 1 allowed" in text and "hc_mean x: row " in text
    lines = list(failure_lines(report))
    assert any(line.startswith("FAIL hc_mean/random-T17/values: ") for line in lines)
    assert "     rerun: tandem conformance --backend faulty --case hc_mean/random-T17/values" in lines
    # A row's bits depend on its place, which the check of rows tells.
    assert "hc_mean/random-T17/rows" in failed


def _raises(trunk: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no such kernel")


def test_an_op_that_raises_fails_and_does_not_stop_the_run() -> None:
    report = run(faulty("hc_mean", _raises)(), "L1", case="hc_mean/random-T2/")
    assert {result.failure for result in report.failures} == {"raised RuntimeError: no such kernel"}
    assert len(report.results) == 6


def _writes_its_input(trunk: torch.Tensor) -> torch.Tensor:
    mean = OP_TABLE["hc_mean"].reference(trunk)
    trunk[0] = 0
    return mean


def test_a_written_argument_is_told() -> None:
    report = run(faulty("hc_mean", _writes_its_input)(), "L1", case="hc_mean/random-T2/read-only")
    (failure,) = report.failures
    assert failure.failure is not None and "argument trunk" in failure.failure


def _forgets_the_scratch_rule(x: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> None:
    """-1 lands in a row that the call does not name."""
    other = min(set(range(len(x) - 1)) - set(index.tolist()))
    x[torch.where(index < 0, other, index).to(torch.int64)] = values


def test_a_write_outside_the_named_rows_is_told() -> None:
    report = run(faulty("scatter_rows", _forgets_the_scratch_rule)(), "L1", case="scatter_rows/some-skipped/sentinel")
    (failure,) = report.failures
    assert failure.failure is not None and "outside the rows that the call names" in failure.failure


def test_a_filter_is_a_part_or_one_whole_name() -> None:
    backend = faulty("hc_mean", OP_TABLE["hc_mean"].reference)()
    whole = run(backend, "L1", case="linear/bf16-T17/values")
    assert [result.name for result in whole.results] == ["linear/bf16-T17/values"]  # no group_linear, no -T17 of others
    part = run(backend, "L1", case="linear/bf16-T17/")
    assert {result.check for result in part.results} == {"values", "poison", "sentinel", "repeat", "read-only", "rows"}
    # A filter that begins with an op and a slash is of that op alone, any other is of all that contain it.
    assert {result.op for result in part.results} == {"linear"}
    names = [f"{op}/random/values" for op in ("linear", "group_linear", "grouped_linear")]
    assert selected(names, "linear/") == selected(names, "linear/ran") == {"linear/random/values"}
    assert selected(names, "linear") == selected(names, "/values") == set(names)
    assert selected(names, "p_linear/") == {"group_linear/random/values"} and not selected(names, "rope/")
    with pytest.raises(ConfigError, match="no check matches"):
        run(backend, "L1", case="no-such-op")
    with pytest.raises(ConfigError, match="L9"):
        run(backend, "L9")


def test_an_op_that_is_restricted_is_skipped_with_the_reason() -> None:
    class Narrow(Faulty):
        @property
        def caps(self) -> Capabilities:
            return dataclasses.replace(super().caps, ops={"linear": OpCap("composite", {"w": frozenset({"bf16"})})})

    report = run(Narrow(), "L1", case="linear/fp8-T1/")
    (fp8,) = {result.skipped for result in report.results if result.op == "linear"}
    assert fp8 == "not claimed: w=fp8_block32 is not supported. Supported: w=bf16"
    assert not run(Narrow(), "L1", case="linear/claims/cases").failures


def test_a_level_is_not_had_by_claiming_nothing() -> None:
    class Absent(Faulty):
        @property
        def caps(self) -> Capabilities:
            return dataclasses.replace(super().caps, ops={"hc_mean": OpCap("absent", notes="later")})

    report = run(Absent(), "L1", case="hc_mean/")
    assert [result.name for result in report.failures] == ["hc_mean/claims/cases"]
    assert all(result.skipped for result in report.results if result.check == "values")


def test_a_claim_without_a_case_is_an_error_of_the_kit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(claims.FORMATS, "linear", claims.FORMATS["linear"] | {"w": ("bf16", "nvfp4")})
    report = run(faulty("hc_mean", _raises)(), "L1", case="linear/claims/cases")
    assert report.failures[0].failure is not None and "x=mxfp8, w=nvfp4, out=f32" in report.failures[0].failure


def _results(**failures: str | None) -> list[Result]:
    return [Result(level, "op", "case", "check", 0.1, failure) for level, failure in failures.items()]


@pytest.mark.parametrize(
    ("results", "claim"),
    [
        (_results(L0=None, L1=None, L2=None), "L2"),
        (_results(L0=None, L1="wrong", L2=None), "L0"),
        (_results(L0="wrong", L1=None, L2=None), "none"),
        ([*_results(L0=None, L1=None), Result("L2", "engine", "x", "engine", 0.0, None, "not there")], "L1"),
    ],
)
def test_a_level_needs_all_below_it_and_something_that_ran(results: list[Result], claim: str) -> None:
    report = Report("any", "L2", False, "", results, {}, "1.0", True)
    assert report.claim == claim
    assert dataclasses.replace(report, quick=True).claim == "none"
    assert dataclasses.replace(report, case="x").claim == "none"


def test_the_command_says_by_its_code_whether_all_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    register(monkeypatch, good=faulty("hc_mean", OP_TABLE["hc_mean"].reference), bad=faulty("hc_mean", _two_places_off))
    command = ["conformance", "--quick", "--case", "hc_mean/", "--backend"]
    assert main([*command, "good", "--report", str(tmp_path / "good")]) == 0
    said = capsys.readouterr().out
    assert "shows none" in said and "FAIL" not in said
    count = said.split("L1  ")[1].split(" fail, ")[1].split(" skipped")[0]
    assert int(count) > 0 and f"\nskipped: {count} (the op writes no argument)\n" in said
    assert main([*command, "bad", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["failed"] == len([r for r in found["results"] if r["failure"]]) > 0 and found["claim"] == "none"
    written = json.loads((tmp_path / "good" / "results.json").read_text())
    values = next(r for r in written["results"] if r["name"] == "hc_mean/random-T17/values")
    assert values["measured"]["x"]["limit"] == 1 and math.isclose(values["measured"]["x"]["worst"], 0.0)
    page = (tmp_path / "good" / "report.txt").read_text()
    assert "hc_mean" in page and "Conformance of backend" in page and page.count("\n") < 60


def test_the_table_shows_the_class_that_an_output_is_judged_by() -> None:
    measured = {"q": Measured("differ", 0.0, 0.0, 0, 0.0078)}
    block = Result("L1", "attn_block", "case", "values", 0.1, measured=measured)
    dots = Result("L1", "linear", "case", "values", 0.1, measured={"y": Measured("floor", 1.0, 0.5, 0, 4.0)})
    refused = [Result("L1", "linear", "case", "rows", 0.0, skipped=f"not claimed: w={w}") for w in ("mxfp4", "mxfp8")]
    report = Report("any", "L1", False, "", [block, dots, *refused], {}, "1.0", True)
    head, *rows = table_rows(report)
    assert {row[0]: row[head.index("class")] for row in rows} == {"attn_block": "A as Q", "linear": "A"}
    assert "skipped: 2 (not claimed)" in list(summary(report))
    assert "skipped: 1 (not claimed: w=mxfp4), 1 (not claimed: w=mxfp8)" in list(page(report))


def test_the_command_refuses_what_shows_no_level(capsys: Capture, tmp_path: Path) -> None:
    for limit in (["--quick"], ["--case", "linear/"]):
        assert main(["conformance", "--backend", "cpu", *limit, "--emit", str(tmp_path / "table.toml")]) == 2
        assert "shows no level" in capsys.readouterr().err
    assert not (tmp_path / "table.toml").exists()

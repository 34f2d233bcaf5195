"""`tandem backends`: every registration with its state and capability records, and the matrix of ops."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.registered import Toy, register

from tandem.backends.cpu.backend import CpuBackend
from tandem.cli.main import main
from tandem.contract.capabilities import Capabilities, OpCap
from tandem.contract.matrix import Cell, cells
from tandem.contract.opspec import OP_TABLE, OpFunction
from tandem.errors import ConfigError

Capture = pytest.CaptureFixture[str]


class Partial(Toy):
    """One own op, one restricted, one absent that composites need."""

    @property
    def caps(self) -> Capabilities:
        ops = {
            "rms_norm": OpCap("absent", notes="no reductions"),
            "linear": OpCap("fused", {"w": frozenset({"bf16", "f32"}), "x": frozenset({"bf16"})}),
            "rope": OpCap("composite", {"dim": frozenset({64})}),
        }
        return dataclasses.replace(super().caps, ops=ops, batch_invariant=False)

    def implementation(self, op: str) -> OpFunction | None:
        return (lambda *_: None) if op == "linear" else None


class Stuck(Toy):
    @classmethod
    def open(cls, device_id: int, options: Mapping[str, Any]) -> CpuBackend:
        raise OSError("the toy is in use")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> dict[str, Any]:
    register(monkeypatch, partial=Partial, stuck=Stuck, gone="nothing to import")
    assert main(["backends", "--json"]) == 0
    read: dict[str, Any] = json.loads(capsys.readouterr().out)
    return read


def test_states_origins_and_versions(found: dict[str, Any]) -> None:
    assert (found["contract"], found["table"]) == ("1.2", "frozen")
    entries = found["backends"]
    states = {name: (entry["state"], entry["contract"], entry["from"]) for name, entry in entries.items()}
    assert states == {
        "cpu": ("opens", "1.2", "tandem"),
        "cuda": ("absent", "1.2", "tandem"),
        "ascend": ("absent", "1.2", "tandem"),
        "partial": ("opens", "1.2", "entry point"),
        "stuck": ("cannot open", "1.2", "entry point"),
        "gone": ("failed", "unknown", "entry point"),
    }
    assert "OSError: the toy is in use" in entries["stuck"]["reason"]
    assert "No module named 'package_of_gone'" in entries["gone"]["traceback"]
    assert entries["partial"]["target"] == "package_of_partial:BACKEND"
    assert entries["partial"]["facts"] == {"spring": "wound", "toykit": "3.1"}


def test_capability_records(found: dict[str, Any]) -> None:
    caps = found["backends"]["partial"]["capabilities"]
    assert caps["ops"]["linear"] == {"impl": "fused", "allows": {"w": ["bf16", "f32"], "x": ["bf16"]}, "notes": ""}
    assert caps["ops"]["rms_norm"] == {"impl": "absent", "allows": {}, "notes": "no reductions"}
    assert (caps["batch_invariant"], caps["graphs"]) == (False, False) and "mxfp8" in caps["formats"]
    assert found["backends"]["cuda"]["capabilities"] is None


def test_the_matrix_covers_every_op_and_backend(found: dict[str, Any]) -> None:
    assert list(found["matrix"]) == sorted(OP_TABLE)
    assert all(list(column) == list(found["backends"]) for column in found["matrix"].values())
    partial = {op: column["partial"] for op, column in found["matrix"].items()}
    assert partial["linear"] == {"kind": "native", "why": "w: bf16, f32; x: bf16"}
    assert partial["rms_norm"] == {"kind": "unsupported", "why": "no reductions"}
    assert partial["hc_enter"] == {"kind": "unsupported", "why": "its part rms_norm: no reductions"}
    assert partial["hc_step"]["why"] == "its part hc_enter: its part rms_norm: no reductions"
    assert partial["rope"] == {"kind": "composite", "why": "dim: 64"}
    assert partial["embed"] == {"kind": "composite", "why": ""}
    for name in ("stuck", "gone", "cuda"):
        kinds = {(column[name]["kind"], column[name]["why"]) for column in found["matrix"].values()}
        assert kinds == {("unknown", found["backends"][name]["reason"])}


def test_a_name_that_is_taken_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    register(monkeypatch, cpu=Toy)
    assert main(["backends"]) == 0
    assert capsys.readouterr().out.startswith(
        "PROBLEM  two backends are called 'cpu': entry point package_of_cpu:BACKEND of entry point; "
        "the name is taken by tandem.backends.cpu.backend:BACKEND of tandem; rename or uninstall one of them\n"
    )


def test_an_own_coarse_op_does_not_need_its_parts() -> None:
    class Coarse(Partial):
        def implementation(self, op: str) -> OpFunction | None:
            return (lambda *_: None) if op == "hc_enter" else None

    found = cells(Coarse(use_native=False))
    assert found["hc_enter"] == Cell("native") and found["hc_step"] == Cell("composite")


def test_what_the_environment_makes_a_composite_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CpuBackend(use_native=True)
    before = cells(backend)
    assert before["linear"].kind == "native" and before["moe_block"].kind == "composite"
    monkeypatch.setenv("TANDEM_COMPOSITE", "linear, moe_block")
    after = cells(backend)
    assert after["linear"] == Cell("composite", "TANDEM_COMPOSITE names it")
    assert {op for op in after if after[op] != before[op]} == {"linear"}
    monkeypatch.setenv("TANDEM_COMPOSITE", "liner")
    with pytest.raises(ConfigError, match="did you mean linear"):
        cells(backend)


def test_for_people(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    register(monkeypatch, partial=Partial, gone="nothing to import")
    assert main(["backends"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("contract 1.2, op table frozen\n")
    head = "partial  opens, contract 1.2, from entry point (package_of_partial:BACKEND)"
    assert f"\n{head}\n  a toy on the desk\n" in text
    assert "\n  | Traceback (most recent call last):" in text
    assert "  claims: batch-invariant, graphs; native kernels\n" in text
    assert "  claims: none; composites only\n" in text
    kinds = [cell.kind for cell in cells(Partial(use_native=False)).values()]
    counts = [f"{kinds.count(kind)} {kind}" for kind in ("native", "composite", "unsupported")]
    assert counts[0] == "1 native" and f"  ops: {', '.join(counts)}\n" in text
    assert main(["backends", "--matrix"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines[: len(OP_TABLE) + 1]}
    assert rows["op"] == ["op", "ascend", "cpu", "cuda", "partial", "gone"]
    assert rows["linear"] == ["linear", "-", "native", "-", "native", "-"]
    assert rows["rms_norm"] == ["rms_norm", "-", rows["rms_norm"][2], "-", "unsupported", "-"]
    assert "linear on partial, native: w: bf16, f32; x: bf16" in lines
    assert any(line.startswith("- gone: its registration failed: ModuleNotFoundError") for line in lines)

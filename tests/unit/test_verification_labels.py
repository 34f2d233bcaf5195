"""What was emulated never reads as run on a device: in reports, tables, lists and comparisons of traces."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.cli.main import main
from tandem.conformance.emit import emit
from tandem.conformance.kit import run
from tandem.conformance.report import Report, page, summary
from tandem.contract.capabilities import EMULATED, RUN_ON_DEVICE, labelled
from tandem.contract.standing import TABLE_FILE, invariance, package_folder, standing
from tandem.errors import ConfigError
from tandem.parity.diff import Difference
from tandem.parity.record import describe

MODULE = "emulating_backend"
SOURCE = '''"""A package of its own, of a backend that emulates its device."""

import dataclasses

from tandem.backends.cpu.backend import CpuBackend


class Sample(CpuBackend):
    name = "sample"

    @property
    def caps(self):
        return dataclasses.replace(super().caps, verification="emulated")


BACKEND = Sample
'''


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[type]:
    path = tmp_path / "package" / f"{MODULE}.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None and spec.loader is not None
    sys.modules[MODULE] = loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    yield loaded.Sample
    del sys.modules[MODULE]


def test_labels() -> None:
    assert labelled("L1", EMULATED) == "L1 (emulated)" and labelled("L1", RUN_ON_DEVICE) == "L1"


def test_a_report_says_it(sample: type) -> None:
    report = run(sample(use_native=False), "L0")
    assert (report.claim, report.shown, report.verification) == ("L0", "L0 (emulated)", "emulated")
    assert list(summary(report))[-1] == "level shown: L0 (emulated)"
    assert next(page(report)).endswith(": emulated")
    written = report.to_json()
    assert (written["verification"], written["shown"]) == ("emulated", "L0 (emulated)")
    part = run(sample(use_native=False), "L0", case="memory/")
    assert (part.claim, part.shown) == ("none", "none")  # no level is shown, so there is nothing to label


def test_a_table_says_it_and_proves_nothing_of_a_device(sample: type) -> None:
    backend = sample(use_native=False)
    path = package_folder(sample) / TABLE_FILE
    report = run(backend, "L0")
    emit(report, backend, path)
    assert tomllib.loads(path.read_text())["verification"] == "emulated"
    found = standing(sample)
    assert (found.level, found.shown) == ("L0", "L0 (emulated)") and found.why.endswith("(emulated)")
    # As an L2 run would write it: batch invariance is claimed, and shown only in emulation.
    emit(dataclasses.replace(report, level="L2", results=_all_levels(report)), backend, path)
    assert standing(sample).shown == "L2 (emulated)"
    proved, why = invariance(sample)
    assert not proved and "emulated" in why


def _all_levels(report: Report) -> list[object]:
    return [dataclasses.replace(result, suite=level) for level in ("L0", "L1", "L2") for result in report.results[:1]]


def test_the_list_of_backends_says_it(
    sample: type, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tandem.cli import backends
    from tandem.contract.registry import Registration

    known = {"sample": Registration("sample", "toys", f"{MODULE}:BACKEND")}
    monkeypatch.setattr(backends, "collect", lambda: (known, []))
    backend = sample(use_native=False)
    emit(run(backend, "L0"), backend, package_folder(sample) / TABLE_FILE)
    assert main(["backends"]) == 0
    told = capsys.readouterr().out
    assert "level L0 (emulated): run of" in told and "verification: emulated" in told
    assert main(["backends", "--matrix"]) == 0
    told = capsys.readouterr().out
    assert "L0 (emulated)" in told and "emulated" in next(x for x in told.splitlines() if "(verification)" in x)


def test_traces_and_their_comparison_say_it(sample: type) -> None:
    assert describe(sample(use_native=False))["capabilities"]["verification"] == "emulated"
    found = Difference("free", ("cpu", "sample"), [], verification=(RUN_ON_DEVICE, EMULATED))
    assert found.shown == ("cpu", "sample (emulated)") and found.to_json()["backends"] == list(found.shown)


def test_a_table_from_before_there_was_a_label_is_one_of_a_device(sample: type) -> None:
    """Only devices were run then."""
    from tandem.contract.standing import sealed

    backend = sample(use_native=False)
    path = package_folder(sample) / TABLE_FILE
    emit(run(backend, "L0"), backend, path)
    body = "\n".join(line for line in path.read_text().splitlines() if not line.startswith(("verification", "seal")))
    path.write_text(sealed(body + "\n"))
    assert standing(sample).shown == "L0"


def test_an_emulated_proof_does_not_satisfy_required(sample: type) -> None:
    from tandem.contract.standing import require_invariance

    backend = sample(use_native=False)
    report = run(backend, "L0")
    emit(
        dataclasses.replace(report, level="L2", results=_all_levels(report)),
        backend,
        package_folder(sample) / TABLE_FILE,
    )
    with pytest.raises(ConfigError, match="batch invariance is required and not proved"):
        require_invariance(sample, "argument")

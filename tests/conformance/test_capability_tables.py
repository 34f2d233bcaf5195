"""Capability tables: written by a run, dropped when what they tell of has changed, and true for the CPU."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tandem_islands.backend import IslandsBackend

from tandem.backends.ascend.backend import AscendBackend
from tandem.backends.cpu.backend import CpuBackend
from tandem.backends.cpu.loading import native_status
from tandem.backends.cuda.backend import CudaBackend
from tandem.cli.main import main
from tandem.conformance.emit import emit, static_part
from tandem.conformance.kit import run, run_job
from tandem.conformance.levels import every_job
from tandem.conformance.speed import stated_floors
from tandem.contract import standing as module
from tandem.contract.standing import TABLE_FILE, package_folder, source_hashes, standing
from tandem.errors import ConfigError

MODULE = "sample_table_backend"
SOURCE = '''"""A package of its own."""

from tandem.backends.cpu.backend import CpuBackend


class Sample(CpuBackend):
    name = "sample"
'''


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[type]:
    """A backend class whose package is a folder of the test's, with the table of an L0 run."""
    path = tmp_path / "package" / f"{MODULE}.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(MODULE, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = loaded
    spec.loader.exec_module(loaded)
    backend = loaded.Sample(use_native=True)
    emit(run(backend, "L0"), backend, path.parent / TABLE_FILE)
    yield loaded.Sample
    del sys.modules[MODULE]


def test_a_table_shows_the_level_of_its_run(sample: type) -> None:
    found = standing(sample)
    assert (found.level, found.why[:7]) == ("L0", "run of ")
    table = found.table
    assert table["ops"]["linear"] == {"impl": "native", "allows": table["ops"]["linear"]["allows"]}
    assert table["ops"]["moe_block"] == {"impl": "composite"}
    assert table["device"]["backend"] == "sample" and set(table["sources"]) == {"package"}


def test_facts_of_a_device_have_any_name(sample: type, tmp_path: Path) -> None:
    backend = sample(use_native=False)
    facts = {"buffers in KiB": "ub 248", 'a "quoted" = one': "1", "cuda.driver": "13.0", "": "nameless", "plain-1": "2"}
    emit(dataclasses.replace(run(backend, "L0"), fingerprint=facts), backend, tmp_path / TABLE_FILE)
    assert tomllib.loads((tmp_path / TABLE_FILE).read_text())["device"] == facts


def test_an_edited_table_is_noticed(sample: type) -> None:
    path = package_folder(sample) / TABLE_FILE
    path.write_text(path.read_text().replace('level = "L0"', 'level = "L3"'))
    assert standing(sample).level == "unverified" and "edited" in standing(sample).why
    path.write_text("level = ")
    assert standing(sample).level == "unverified" and "cannot be read" in standing(sample).why


def test_other_sources_drop_the_claim(sample: type) -> None:
    folder = package_folder(sample)
    (folder / "notes.md").write_text("no kernel")
    assert standing(sample).level == "L0"
    (folder / "kernels.cu").write_text("// a kernel")
    assert (standing(sample).level, "the package sources" in standing(sample).why) == ("unverified", True)
    (folder / "kernels.cu").unlink()
    assert standing(sample).level == "L0"


def test_another_contract_drops_the_claim(sample: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONTRACT_VERSION", (1, 3))
    assert "the contract (1.2, now 1.3)" in standing(sample).why
    monkeypatch.setattr(module, "CONTRACT_VERSION", (1, 2))
    monkeypatch.setattr(module, "table_signature", lambda: "other")
    assert (standing(sample).level, "the op table" in standing(sample).why) == ("unverified", True)


def test_native_sources_count_where_there_are_some(tmp_path: Path, repo_root: Path) -> None:
    """A copy of the CPU's package beside a csrc, as in a checkout, and without one, as installed."""
    now = source_hashes(CpuBackend)
    assert set(now) == {"package", "native"}
    shutil.copytree(repo_root / "csrc", tmp_path / "csrc")
    copy = tmp_path / "backends" / "cpu"
    shutil.copytree(package_folder(CpuBackend), copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    found = module.hashes_of(copy)
    assert found == now
    (tmp_path / "csrc" / "include" / "tandem_cuda.h").write_text("// another backend's\n")
    assert module.hashes_of(copy) == now
    (tmp_path / "csrc" / "cpu" / "quantize.cpp").write_text("// other\n")
    assert module.hashes_of(copy)["native"] != now["native"] and module.hashes_of(copy)["package"] == now["package"]
    shutil.rmtree(tmp_path / "csrc")
    assert module.hashes_of(copy) == {"package": now["package"]}


def test_what_was_never_run_is_unverified() -> None:
    class Unrun(CpuBackend):
        """No table lies beside this file."""

    assert (standing(Unrun).level, standing(Unrun).why) == ("unverified", "no conformance run is recorded")


@pytest.mark.parametrize(("backend", "level"), [(CudaBackend, "L1"), (AscendBackend, "L2")])
def test_what_was_emulated_says_so_and_proves_no_invariance(backend: type, level: str) -> None:
    found = standing(backend)
    assert (found.level, found.table["verification"]) == (level, "emulated")
    assert not module.invariance(backend)[0]


def test_the_list_and_the_matrix_show_levels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["backends"]
    assert {name: entries[name]["level"] for name in ("cpu", "cuda", "ascend")} == {
        "cpu": "L2",
        "cuda": "L1 (emulated)",
        "ascend": "L2 (emulated)",
    }
    assert main(["backends", "--matrix"]) == 0
    header, levels = capsys.readouterr().out.splitlines()[:2]
    shown = dict(zip(header.split(), re.split(r"\s{2,}", levels.strip()), strict=True))
    assert shown == {"op": "(level)", "cpu": "L2", "cuda": "L1 (emulated)", "ascend": "L2 (emulated)"}


@pytest.mark.parametrize("name", ["cpu", "islands"])
def test_tables_are_up_to_date(name: str) -> None:
    """If this fails: tandem conformance --backend NAME --level L2 --emit, to the file beside the backend's code."""
    if name == "cpu" and not native_status().available:
        pytest.skip("the table is of the native kernels, which are not built")
    backend = CpuBackend(use_native=True) if name == "cpu" else IslandsBackend.open(0, {})
    table = tomllib.loads((package_folder(type(backend)) / TABLE_FILE).read_text())
    fixed = static_part(backend)
    kept = {key: table[key] for key in fixed if key != "ops"}
    kept["ops"] = {op: {k: v for k, v in record.items() if k != "worst"} for op, record in table["ops"].items()}
    assert kept == fixed
    assert standing(type(backend)).level == table["level"] == "L2"


@pytest.mark.slow
@pytest.mark.skipif(not native_status().available, reason="the table is of the native kernels, which are not built")
def test_a_run_on_the_cpu_shows_what_its_table_says(tmp_path: Path) -> None:
    backend = CpuBackend(use_native=True)
    report = run(backend, "L2")
    assert report.failures == [] and report.claim == "L2"
    emit(report, backend, tmp_path / TABLE_FILE)
    new = tomllib.loads((tmp_path / TABLE_FILE).read_text())
    old = tomllib.loads((package_folder(CpuBackend) / TABLE_FILE).read_text())
    assert {op: set(record.get("worst", ())) for op, record in new["ops"].items()} == {
        op: set(record.get("worst", ())) for op, record in old["ops"].items()
    }


def test_floors_are_stated_by_the_port(sample: type) -> None:
    """Medians of microseconds: a second is enough for a mean of streams on any machine, a nanosecond on none."""
    backend, path = sample(use_native=False), package_folder(sample) / "floors.json"
    (unstated,) = [job.op for job in every_job(backend, "L3", quick=False) if job.suite == "L3"]
    assert unstated == "speed"
    path.write_text('{"hc_mean": 1e6, "rope": 0.001}')
    jobs = [job for job in every_job(backend, "L3", quick=False) if job.suite == "L3"]
    found = {result.op: result.failure for result in map(run_job, jobs)}
    assert found["hc_mean"] is None and "stated 0.0 us" in found["rope"]
    for wrong in ('{"no-op": 1}', '{"rope": -1}', '{"rope": true}', "[1]", "{"):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match="floors of a port"):
            stated_floors(backend)

"""The example backend of examples/islands, with its own memory space: ops within their classes, the engine suite.

Its own tests, next to it, are about memory, layouts, queue and faults.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tandem_islands.backend import IslandsBackend
from tandem_islands.faults import InjectedFault

from tandem.conformance.calls import leaves, run_call
from tandem.conformance.derive.base import View, load_all
from tandem.conformance.engine_harness import Driver, EngineHarness, Job, greedy, tokens
from tandem.conformance.engine_suite import checks
from tandem.contract.cases import materialise
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan
from tandem.contract.types import QTensor
from tandem.engine.outputs import RequestOutput

DERIVATIONS = load_all()
QUICK = {name for name, _ in checks(quick=True)}
SUITE = [pytest.param(name, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, _ in checks()]
SOAK_SECONDS = float(os.environ.get("SOAK_SECONDS", "180"))


def opened() -> IslandsBackend:
    return IslandsBackend.open(0, {})


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(opened())


@pytest.mark.parametrize("op", DERIVATIONS)
def test_values(plan: Plan, op: str) -> None:
    for case in OP_TABLE[op].cases:
        got = run_call(plan, op, materialise(case.build(0), plan.backend, 0xFF))
        tensors = leaves(got)
        whole = {name: value for name, value in got.items() if isinstance(value, QTensor)}
        for name, check in DERIVATIONS[op](View(case.build(0)), got).items():
            check.check(whole.get(name, tensors.get(name)), f"{op} {case.name} {name}")


@pytest.fixture(scope="module")
def harness() -> Iterator[EngineHarness]:
    with EngineHarness(opened(), opened) as found:
        yield found


@pytest.mark.parametrize("name", SUITE)
def test_engine_suite(harness: EngineHarness, name: str) -> None:
    dict(checks())[name](harness)


# -- soak --------------------------------------------------------------------------------------------------


class Soak:
    """Random requests, cancels and faults on one engine that is always short of blocks."""

    def __init__(self, harness: EngineHarness, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.jobs = [Job(tokens(n, 1 + 7 * n % 30), greedy(1 + n % 11)) for n in range(24)]
        backend = IslandsBackend.open(0, {"fault": self.faults(), "seed": seed})
        small = {"cache__num_blocks": 7, "cache__block_size": 8, "scheduler__max_chunk": 12}
        self.driver: Driver = harness.driver(backend, **small)
        self.known: dict[int, Job] = {}
        self.failed = self.cancelled = self.preempted = 0

    def faults(self) -> str:
        """One failing op in about 3000 calls, one failing allocation and one slow copy in 1000; none while loading."""
        places = []
        for kind, gap in (("op", 3000), ("alloc", 1000), ("slow", 1000)):
            counts = 2000 + self.rng.integers(1, 2 * gap, 500).cumsum()
            places += [f"{kind}@{count}" for count in counts.tolist()]
        return ",".join(places)

    def visit(self) -> None:
        """Perhaps someone comes, perhaps someone leaves."""
        if len(self.known) < 8 and self.rng.random() < 0.4:
            job = self.jobs[int(self.rng.integers(len(self.jobs)))]
            try:
                self.known[self.driver.add(job)] = job
            except InjectedFault:
                self.failed += 1  # nothing was taken in
        if self.known and self.rng.random() < 0.02:
            request = int(self.rng.choice(list(self.known)))
            assert self.driver.engine.cancel(request) is not None
            del self.known[request]
            self.cancelled += 1

    def step(self) -> list[tuple[Job, RequestOutput]]:
        """Requests that ended in one step."""
        try:
            self.driver.step()
        except InjectedFault:
            self.failed += 1
        ended = [(self.known.pop(request), output) for request, output in self.driver.outputs.items()]
        self.driver.outputs.clear()
        return ended


@pytest.mark.slow
def test_soak(harness: EngineHarness) -> None:
    """Whatever fails and whoever leaves, each request that ends has the tokens it has alone, and nothing is lost."""
    soak, alone, finished = Soak(harness, 1), dict[int, tuple[int, ...]](), 0
    end = time.monotonic() + SOAK_SECONDS
    while (now := time.monotonic()) < end or not soak.driver.engine.idle:
        if now < end:
            soak.visit()
        for job, output in soak.step():
            if isinstance(output.error, InjectedFault):
                continue  # it could not be taken in from the queue
            place = soak.jobs.index(job)
            if place not in alone:
                alone[place] = harness.roomy.run([job])[0].token_ids
            assert output.token_ids == alone[place], f"job {place}"
            finished += 1
            soak.preempted += output.preemptions
    soak.driver.check_clean()
    assert not soak.known and finished and soak.failed and soak.preempted and soak.cancelled


# -- installed from wheels -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_holds_l2_from_wheels_in_an_empty_environment(repo_root: Path, tmp_path: Path) -> None:
    """Only two wheels and what they declare, away from all sources: its own tests, and every level up to L2."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TANDEM_", "PYTHON", "ISLANDS_"))}
    ignore = shutil.ignore_patterns("__pycache__", "libtandem_cpu.*", "*.egg-info", "build")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE"):
        (tmp_path / "tandem").mkdir(exist_ok=True)
        shutil.copy(repo_root / name, tmp_path / "tandem" / name)
    for name in ("core", "backends", "csrc"):
        shutil.copytree(repo_root / name, tmp_path / "tandem" / name, ignore=ignore)
    shutil.copytree(repo_root / "examples" / "islands", tmp_path / "examples" / "islands", ignore=ignore)
    shutil.copytree(tmp_path / "examples" / "islands" / "tests", tmp_path / "tests")
    kept["PATH"] = f"{tmp_path / 'empty' / 'bin'}:{kept['PATH']}"

    def clean(*command: str, returns: int = 0) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True)
        assert done.returncode == returns, done.stdout + done.stderr
        return done.stdout

    clean(sys.executable, "-m", "venv", "empty")
    pip = ("empty/bin/python", "-m", "pip", "--quiet")
    constraints = ("-c", str(repo_root / "ci" / "constraints.txt"))
    for source in ("tandem", "examples/islands"):
        wheels = tmp_path / f"{Path(source).name}-wheel"
        clean(*pip, "wheel", "--no-deps", "-w", str(wheels), f"./{source}")
        clean(*pip, "install", *constraints, *map(str, wheels.glob("*.whl")))
    shutil.rmtree(tmp_path / "tandem")
    clean(*pip, "install", *constraints, "pytest")
    said = clean("empty/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert "passed" in said and "skipped" not in said
    listed = json.loads(clean("empty/bin/tandem", "backends", "--json"))["backends"]["islands"]
    assert (listed["state"], listed["from"]) == ("opens", "tandem-islands")
    report = json.loads(clean("empty/bin/tandem", "conformance", "--backend", "islands", "--level", "L2", "--json"))
    assert report["holds"] and report["claim"] == "L2"
    # Then docs/PORTING.md from its first command to its last, which has a fault.
    lines = (repo_root / "docs" / "PORTING.md").read_text(encoding="utf-8").splitlines()
    *commands, faulty = [line.strip() for line in lines if line.startswith("    ")]
    for command in commands:
        clean("bash", "-c", command)
    assert "FAIL linear/" in clean("bash", "-c", faulty, returns=1)

"""The NEON kernels, emulated by QEMU, give the same bytes as this machine's: every op on the cases of the contract.

Skipped where Debian's g++-aarch64-linux-gnu or qemu-user are missing.  Emulation shows bits, not speed.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu.test_products import BF16, FP4, FP8, activations, weight
from support.cpu_build import BUILD, SOURCES, compiler_for
from support.cpu_neon import DRIVER, Call, differences, listen

import tandem.ops  # noqa: F401  (declares every op)
from tandem.backends.cpu.backend import CpuBackend
from tandem.conformance.claims import attributes
from tandem.conformance.memory import written
from tandem.conformance.stage import Stage
from tandem.contract.cases import Draw
from tandem.contract.opspec import OP_TABLE
from tandem.contract.plan import Plan
from tandem.contract.types import CanonicalWeight, WeightKind
from tandem.errors import OpUnsupported
from tandem.ops.head_sample import numbers

COMPILER, SYSTEM = compiler_for("aarch64"), "/usr/aarch64-linux-gnu"
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="no aarch64-linux-gnu-g++ on this machine"),
    pytest.mark.skipif(EMULATOR is None, reason="no qemu-aarch64 on this machine"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """The command of the driver, and the library."""
    assert COMPILER is not None
    folder = tmp_path_factory.mktemp("neon")
    library, driver = folder / "libtandem_cpu.so", folder / "driver"
    assert BUILD.compile_library(library, COMPILER, machine="aarch64") == ""
    include = f"-I{SOURCES / 'include'}"
    command = [COMPILER, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", include, str(DRIVER), "-o", str(driver)]
    subprocess.run(command, check=True)
    return [str(EMULATOR), "-L", SYSTEM, str(driver)], library


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(CpuBackend(True))


def calls_of(plan: Plan, op: str) -> list[Call]:
    """Of all cases of an op."""
    found: list[Call] = []
    for case in OP_TABLE[op].cases:
        stage = Stage(plan, OP_TABLE[op], case)
        try:
            function = plan.bind(op, "emulated NEON", **attributes(op, stage.data))
        except OpUnsupported:
            continue
        given: dict[str, Any] = stage.arguments()
        found += listen(lambda f=function, g=given: f(**g), [given[name] for name in written(op) if name in given])
    return found


@pytest.mark.parametrize("op", sorted(OP_TABLE))
def test_cases_of_the_contract(op: str, plan: Plan, built: tuple[list[str], Path], tmp_path: Path) -> None:
    calls = calls_of(plan, op)
    if not any(call.outputs for call in calls):
        pytest.skip("calls no kernel")
    assert differences(calls, *built, tmp_path) == []


@pytest.mark.parametrize("fmt", [BF16, FP8, FP4])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 40])
def test_products(fmt: Any, rows: int, plan: Plan, built: tuple[list[str], Path], tmp_path: Path) -> None:
    """Rows that end inside a chunk and go over several blocks of a sum, on every path through the rows of x."""
    backend = plan.backend
    assert isinstance(backend, CpuBackend)
    packed = backend.pack_weight(WeightKind.LINEAR, weight(fmt, 70, 4128)[0], (70, 4128))
    x, _ = activations(backend, rows, 4128)
    calls = listen(lambda: backend.implementation("linear")(x, packed, torch.float32))
    assert calls[0].outputs and differences(calls, *built, tmp_path) == []


def test_greedy_tokens(plan: Plan, built: tuple[list[str], Path], tmp_path: Path) -> None:
    """The screen, its bounds, and tokens of rows that it serves and of one that takes the whole head."""
    draw = Draw(3)
    head, x = CanonicalWeight(draw.bf16(1301, 96), None, BF16), draw.bf16(9, 96)
    x[4] = 0.0
    packed = plan.backend.pack_weight(WeightKind.HEAD, head, (1301, 96))
    function = plan.bind("head_sample", "emulated NEON")
    calls = listen(lambda: plan.backend.pack_weight(WeightKind.HEAD, head, (1301, 96)))
    calls += listen(lambda: function(x, packed, **numbers(3, 9, greedy=True)))
    assert [call.name for call in calls] == ["head_screen", "head_greedy"] and len(calls[0].outputs) >= 3
    assert differences(calls, *built, tmp_path) == []

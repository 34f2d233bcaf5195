"""Compiles every Triton kernel at official shapes, without a GPU, and holds what comes out against limits.

    python -m tools.kernels.gates [--op OP ...] [--arch 100 90] [--json FILE] [--write docs/KERNELS.md]

A kernel passes for sm_100 when nothing is spilt to local memory, shared and tensor memory fit, and the instructions
that it was written for are there.  For sm_90 it must compile, without spills, unless it is listed as sm_100 only.
Compiled says nothing about results: see the conformance run for what is emulated.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import triton
from tqdm import tqdm

from tandem.backends.cuda.compiling import Compiled, Request, compile_request, request_of
from tandem.backends.cuda.launch import recording
from tandem.backends.cuda.table import triton_ops
from tools.kernels.cuda import CudaLayouts
from tools.kernels.workloads import PHASES, Maker, workloads
from tools.pages import replace

SHARED_LIMIT = 227 * 1024
TENSOR_LIMIT = 512
INTERESTING = r"\b(UTC[A-Z]*MMA|UTCCP|UTMALDG|UTMASTG|UTMACMDFLUSH|LDTM|STTM|HGMMA|HMMA|QMMA|LDGSTS|SYNCS)\b"

# Instructions that a kernel was written for, by the name of the jitted function: block-scaled or plain products of the
# tensor cores, and loads from tensor memory.
REQUIRED: dict[str, tuple[str, ...]] = {
    "attend_row": ("UTCHMMA", "LDTM"),
    "attend_chunk": ("UTCHMMA", "LDTM"),
    "index_scores": ("UTCOMMA", "LDTM"),
    "index_scores_at": ("UTCOMMA", "LDTM"),
    "markov": ("UTCHMMA", "LDTM"),
    "scores": ("UTCHMMA", "LDTM", "UTMALDG"),
}
# Kernels that may spill on an architecture, with the reason, and kernels that do not exist for sm_90, with the reason.
SPILLS_ALLOWED: dict[tuple[str, int], str] = {
    ("sample", 100): "without filters one register lies on the stack across a 64-bit division, once a row",
    ("sample", 90): "without filters one register lies on the stack across a 64-bit division, once a row",
    ("weigh", 90): "on sm_90 one register lies on the stack across a 64-bit division, outside the loop",
    ("attend_row", 90): "on sm_90, where sums live in registers, adding a chunk to 64 x 512 f32 spills once a chunk",
}
ONLY_SM100: dict[str, str] = {}


@dataclass(frozen=True)
class Gate:
    """One kernel for one architecture.

    Args:
        op: contract op whose launcher it belongs to.
        use: first workload and phase that asked for it.
        compiled: what came out; None where it did not compile.
        failures: what does not hold.
    """

    op: str
    use: str
    kernel: str
    arch: int
    compiled: Compiled | None
    failures: tuple[str, ...]

    @property
    def instructions(self) -> list[str]:
        """Instructions that say how it works."""
        return [] if self.compiled is None else sorted(set(re.findall(INTERESTING, self.compiled.sass)))


def requests(ops: Iterable[str]) -> Iterator[tuple[str, str, Request]]:
    """(op, use, request) of every kernel that the launchers of ``ops`` start at official shapes, each once."""
    maker, launchers, seen = Maker(CudaLayouts()), triton_ops(), set()
    for workload in workloads():
        if workload.op not in launchers or workload.op not in ops:
            continue
        for phase in PHASES:
            with recording() as launches:
                launchers[workload.op](**workload.build(maker, phase))
            for launch in launches:
                request = request_of(launch)
                if request.key not in seen:
                    seen.add(request.key)
                    yield workload.op, f"{workload.site} {phase.name}".strip(), request


def judge(request: Request, arch: int) -> tuple[Compiled | None, tuple[str, ...]]:
    """Compile and hold against the limits."""
    if arch < 100 and request.name in ONLY_SM100:
        return None, ()
    try:
        made = compile_request(request, arch)
    except Exception as error:  # a compiler fails in many ways; each is a failure of this gate, with its text
        return None, (f"does not compile: {type(error).__name__}: {str(error).strip().splitlines()[0][:200]}",)
    failures = []
    if made.spills and (request.name, arch) not in SPILLS_ALLOWED:
        failures.append(f"{made.spills} bytes are spilt")
    if made.shared > SHARED_LIMIT:
        failures.append(f"{made.shared} bytes of shared memory, {SHARED_LIMIT} are there")
    if made.tensor_memory > TENSOR_LIMIT:
        failures.append(f"{made.tensor_memory} columns of tensor memory, {TENSOR_LIMIT} are there")
    missing = [one for one in REQUIRED.get(request.name, ()) if arch >= 100 and one not in made.sass]
    failures += [f"no {one} among its instructions" for one in missing]
    return made, tuple(failures)


def run(ops: Iterable[str], archs: Iterable[int]) -> list[Gate]:
    """All gates of some ops."""
    todo = [(*one, arch) for one in requests(set(ops)) for arch in archs]
    gates = []
    for op, use, request, arch in tqdm(todo, desc="kernels", disable=None):
        made, failures = judge(request, arch)
        gates.append(Gate(op, use, request.name, arch, made, failures))
    return gates


def table(gates: list[Gate]) -> str:
    """The page of all kernels."""
    head = "| op | kernel | for | first used by | registers | spilt | shared | tensor memory | warps | instructions |"
    lines = [head, "|" + "---|" * 10]
    for gate in gates:
        made = gate.compiled
        if made is None:
            why = ONLY_SM100.get(gate.kernel, "; ".join(gate.failures))
            lines.append(f"| `{gate.op}` | `{gate.kernel}` | sm_{gate.arch} | {gate.use} | - | - | - | - | - | {why} |")
            continue
        spilt = f"{made.spills}{' (listed)' if made.spills else ''}"
        numbers = f"{made.registers} | {spilt} | {made.shared} | {made.tensor_memory} | {made.warps}"
        listed = " ".join(gate.instructions) or "-"
        lines.append(f"| `{gate.op}` | `{gate.kernel}` | sm_{gate.arch} | {gate.use} | {numbers} | {listed} |")
    return "\n".join(lines) + "\n"


def record(gates: list[Gate]) -> list[dict[str, object]]:
    """For machines; without the instructions themselves."""
    found = []
    for gate in gates:
        made = {} if gate.compiled is None else {k: v for k, v in asdict(gate.compiled).items() if k != "sass"}
        plain = {"op": gate.op, "use": gate.use, "kernel": gate.kernel, "arch": gate.arch}
        found.append({**plain, **made, "instructions": gate.instructions, "failures": list(gate.failures)})
    return found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Compile every Triton kernel at official shapes, without a GPU.")
    parser.add_argument("--op", nargs="*", help="these ops only")
    parser.add_argument("--arch", nargs="*", type=int, default=[100, 90], help="compute capability x 10 (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    parser.add_argument("--write", type=Path, help="write the table between the marks of a page")
    arguments = parser.parse_args()
    gates = run(arguments.op or triton_ops(), arguments.arch)
    print(table(gates))
    if arguments.json:
        arguments.json.write_text(json.dumps(record(gates), indent=1) + "\n", encoding="utf-8")
    if arguments.write:
        replace(arguments.write, "kernels", table(gates))
    bad = [gate for gate in gates if gate.failures]
    for gate in bad:
        print(f"FAIL {gate.op} {gate.kernel} sm_{gate.arch} ({gate.use}): {'; '.join(gate.failures)}")
    print(f"{len(gates)} compiled with triton {triton.__version__} and torch {torch.__version__}, {len(bad)} fail")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

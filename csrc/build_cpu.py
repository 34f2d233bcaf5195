"""Compile csrc/cpu into one shared library.

The files of csrc/cpu/ops are compiled once for every instruction set of the machine's architecture, all of them as one
translation unit; the library picks a set when it is loaded.  An op's file puts its entry into the namespace
``tandem::TANDEM_ISA::ops::<entry>`` as the function ``run``, and is found by that.

Usage: python csrc/build_cpu.py TARGET [--sets NAME...] [--compiler COMMAND]
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    # Results must not depend on what a compiler likes to fuse; the other two cost nothing in
    # accuracy and let it vectorise selections and square roots.
    "-ffp-contract=off",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
]
_ENTRY = re.compile(r"^namespace tandem::TANDEM_ISA::ops::(\w+) \{", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """What the kernels are compiled for.

    Args:
        name: in C++ and in reports.
        flags: of the compiler.
        condition: C++ expression that says whether the machine has it.
    """

    name: str
    flags: tuple[str, ...] = ()
    condition: str = "true"


def _supports(*features: str) -> str:
    return " && ".join(f'__builtin_cpu_supports("{feature}")' for feature in features)


_VBMI = ("-march=x86-64-v4", "-mavx512vbmi", "-mavx512vnni", "-mprefer-vector-width=512")
# By what platform.machine() says, best first; the last one every machine of the kind has.
SETS = {
    "x86_64": (
        InstructionSet(
            "avx512_bf16", (*_VBMI, "-mavx512bf16"), _supports("x86-64-v4", "avx512vbmi", "avx512vnni", "avx512bf16")
        ),
        InstructionSet("avx512", _VBMI, _supports("x86-64-v4", "avx512vbmi", "avx512vnni")),
        InstructionSet("avx2", ("-march=x86-64-v3",), _supports("x86-64-v3")),
        InstructionSet("portable"),
    ),
    "aarch64": (InstructionSet("neon"),),
}


def entries(sources: list[Path]) -> list[str]:
    """Names of the entries in the files of ops, in order."""
    return [name for source in sources for name in _ENTRY.findall(source.read_text(encoding="utf-8"))]


def unit(name: str, sources: list[Path]) -> str:
    """The translation unit of one instruction set."""
    rows = [
        f'    {{"{entry}", Form<ops::{entry}::run>::signature, Form<ops::{entry}::run>::run}},'
        for entry in entries(sources)
    ]
    lines = [f"#define TANDEM_ISA {name}", '#include "entry.h"']
    lines += [f'#include "ops/{source.name}"' for source in sources]
    lines += [f"namespace tandem::{name} {{", "extern const tandem_entry kEntries[];"]
    lines += ["const tandem_entry kEntries[] = {", *rows, "    {nullptr, nullptr, nullptr},", "};", "}"]
    return "\n".join(lines) + "\n"


def _chosen(names: list[str] | None, machine: str) -> list[InstructionSet]:
    known = SETS.get(machine, (InstructionSet("portable"),))
    return [one for one in known if names is None or one.name in names]


def compile_library(
    target: Path,
    compiler: str,
    names: list[str] | None = None,
    machine: str | None = None,
    extra: list[str] | None = None,
) -> str:
    """Compile and link; returns the compiler's messages where that fails, else an empty string.

    Args:
        target: the library.
        compiler: command.
        names: instruction sets; None for all of the machine's architecture.
        machine: as ``platform.machine()`` gives it; None for this one.
        extra: further flags.
    """
    sets = _chosen(names, machine or platform.machine())
    base = [*shlex.split(compiler), *FLAGS, *(extra or []), f"-I{ROOT / 'include'}", f"-I{ROOT / 'cpu'}"]
    sources = sorted((ROOT / "cpu" / "ops").glob("*.cpp"))
    with tempfile.TemporaryDirectory(prefix="tandem-cpu-") as name:
        folder = Path(name)
        table = " ".join(f"X({one.name}, ({one.condition}))" for one in sets)
        (folder / "instruction_sets.inc").write_text(f"#define TANDEM_INSTRUCTION_SETS(X) {table}\n")
        jobs: list[list[str]] = []
        objects: list[str] = []
        for one in sets:
            path = folder / f"{one.name}.cpp"
            path.write_text(unit(one.name, sources), encoding="utf-8")
            jobs.append([*base, *one.flags, "-c", str(path), "-o", str(path.with_suffix(".o"))])
            objects.append(str(path.with_suffix(".o")))
        for path in sorted((ROOT / "cpu").glob("*.cpp")):
            objects.append(str(folder / f"{path.stem}.main.o"))
            jobs.append([*base, f"-I{folder}", "-c", str(path), "-o", objects[-1]])
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            messages = [message for message in pool.map(_run, jobs) if message]
        if messages:
            return "\n".join(messages)
        partial = target.with_suffix(".part")
        message = _run(
            [*shlex.split(compiler), "-shared", "-Wl,--as-needed", *(extra or []), *objects, "-o", str(partial)]
        )
        if not message:
            partial.replace(target)  # never a half-written library, and never one changed under a running process
        return message


def _run(command: list[str]) -> str:
    """Messages of a command that failed."""
    result = subprocess.run(command, capture_output=True, text=True)
    return (result.stderr or f"{command[0]} failed without a message") if result.returncode else ""


def find_compiler() -> str | None:
    """The command of a C++ compiler."""
    candidates = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    return next((c for c in candidates if c and shutil.which(shlex.split(c)[0])), None)


def main() -> int:
    """Compile from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target", type=Path)
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="instruction sets; default: all of the architecture")
    parser.add_argument("--machine", help="architecture; default: this machine's")
    parser.add_argument("--compiler", default=find_compiler(), help="default: %(default)s")
    arguments = parser.parse_args()
    message = compile_library(arguments.target, arguments.compiler, arguments.sets, arguments.machine)
    print(message, end="", file=sys.stderr)
    return 1 if message else 0


if __name__ == "__main__":
    sys.exit(main())

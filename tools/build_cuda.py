"""Build ``build/cuda/libtandem_cuda.so`` from csrc/cuda; `make cuda` runs this.

``python -m tools.build_cuda`` compiles what has changed, one file at a time, and links.  nvcc and CUTLASS come from the
optional install ``.[cuda-build]``; an nvcc on PATH serves too.  Without them nothing is built and the reason is printed
(exit status 0; with ``--require`` it is 1).  ``--check`` says only whether the library can be built.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES, INCLUDE = ROOT / "csrc" / "cuda", ROOT / "csrc" / "include"
BUILD = ROOT / "build" / "cuda"
LIBRARY = BUILD / "libtandem_cuda.so"
INSTALL = "pip install -c ci/constraints.txt '.[cuda-build]'"
ARCH = "arch=compute_100a,code=sm_100a"
FLAGS = ("-O3", "-DNDEBUG", "-std=c++17", "-gencode", ARCH, "--expt-relaxed-constexpr")
HOST_FLAGS = ("-Xcompiler", "-fPIC,-fvisibility=hidden")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The compiler, its version, and the folders of CUTLASS headers."""

    nvcc: Path
    version: str
    includes: tuple[Path, ...]

    @property
    def runtime(self) -> Path:
        """Where the wheels have the runtime library, and nvcc does not look."""
        return self.nvcc.parent.parent / "lib"


@dataclass(frozen=True, slots=True)
class Compilation:
    """One compiled file.

    Args:
        source: its name.
        key: what it was made of.
        seconds: that passed meanwhile.
        processor_seconds: that it took of the processor, the same on a busy machine as on an idle one.
        peak_mib: memory of its largest process.
    """

    source: str
    key: str
    seconds: float
    processor_seconds: float
    peak_mib: int


def find_toolchain() -> Toolchain | str:
    """The toolchain, or what is missing of it."""
    nvcc = _installed_nvcc() or (Path(found) if (found := shutil.which("nvcc")) else None)
    if nvcc is None:
        return f"no nvcc on PATH or in this environment; {INSTALL}"
    done = subprocess.run([nvcc, "--version"], capture_output=True, text=True)
    if done.returncode:
        return f"{nvcc} does not run: {(done.stderr or done.stdout).strip()}"
    version = next(line for line in done.stdout.splitlines() if "release" in line).split(", ")[-1]
    spec = importlib.util.find_spec("cutlass_library")
    if spec is None or spec.origin is None:
        return f"no CUTLASS headers (package nvidia-cutlass) in this environment; {INSTALL}"
    source = Path(spec.origin).parent / "source"
    includes = (source / "include", source / "tools" / "util" / "include")
    missing = next((str(path) for path in includes if not path.is_dir()), None)
    return f"{missing} is not a folder; {INSTALL}" if missing else Toolchain(nvcc, version, includes)


def _installed_nvcc() -> Path | None:
    """nvcc of the wheels, which share one folder."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for nvcc in sorted(Path(folder).glob("cu*/bin/nvcc")):
            return nvcc
    return None


def sources() -> list[Path]:
    """Translation units, the quick ones first."""
    found = [*SOURCES.glob("*.cu"), *SOURCES.glob("*.cpp")]
    return sorted(found, key=lambda path: ("_product.cuh" in path.read_text(encoding="utf-8"), path.name))


def objects(suffix: str = "") -> list[Path]:
    """What the library is linked from; with a suffix, what was made of sources with that suffix."""
    return [BUILD / f"{source.stem}.o" for source in sources() if source.suffix.endswith(suffix)]


def _included(source: Path) -> list[Path]:
    """A file and the files of this repository that it includes, each once."""
    found, waiting = [], [source.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.append(path)
            names = re.findall(r'^#include "(.+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
            waiting += [(path.parent / name).resolve() for name in names]
    return sorted(found)


def _key(source: Path, tools: Toolchain) -> str:
    """What an object depends on: its file and what it includes, comments left out, flags and compiler."""
    digest = hashlib.sha256(" ".join((*FLAGS, *HOST_FLAGS, tools.version)).encode())
    for path in _included(source):
        code = re.sub(r"/\*.*?\*/|//[^\n]*", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        digest.update(f"{path.name} {' '.join(code.split())}\n".encode())
    return digest.hexdigest()


def compile_one(source: Path, tools: Toolchain) -> tuple[Compilation, bool]:
    """The object of a file, compiled where it is not there already, and whether it was.

    Raises:
        SystemExit: the compiler failed.
    """
    target, note = BUILD / f"{source.stem}.o", BUILD / f"{source.stem}.json"
    key = _key(source, tools)
    if target.exists() and note.exists():
        known = Compilation(**json.loads(note.read_text(encoding="utf-8")))
        if known.key == key:
            return known, False
    includes = [word for path in tools.includes for word in ("-I", str(path))]
    command = [str(tools.nvcc), *FLAGS, *HOST_FLAGS, *includes, "-c", str(source), "-o", str(target)]
    start = time.monotonic()
    child = subprocess.Popen(command)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        note.unlink(missing_ok=True)
        raise SystemExit(f"tools.build_cuda: {source.relative_to(ROOT)} does not compile")
    passed, used = time.monotonic() - start, usage.ru_utime + usage.ru_stime
    made = Compilation(source.name, key, round(passed, 1), round(used, 1), usage.ru_maxrss // 1024)
    note.write_text(json.dumps(asdict(made), indent=1) + "\n", encoding="utf-8")
    return made, True


def build(tools: Toolchain) -> list[Compilation]:
    """Compile and link; returns what is known of each file."""
    BUILD.mkdir(parents=True, exist_ok=True)
    found, changed = [], not LIBRARY.exists()
    for source in sources():
        made, fresh = compile_one(source, tools)
        times = f"{made.seconds:7.1f} s, {made.processor_seconds:6.1f} s of a processor"
        print(f"{made.source:20} {times}, {made.peak_mib:5} MiB{'' if fresh else ', as before'}", flush=True)
        found.append(made)
        changed |= fresh
    if changed:
        partial = LIBRARY.with_suffix(".part")
        command = [str(tools.nvcc), "-gencode", ARCH, "-shared", "--cudart", "static", "-L", str(tools.runtime)]
        command += ["-Xlinker", f"--no-undefined,--version-script={SOURCES / 'exports.map'}"]
        subprocess.run([*command, *map(str, objects()), "-o", str(partial)], check=True)
        partial.replace(LIBRARY)  # never a half-written library, and never one changed under a running process
    return found


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="say whether the library can be built; build nothing")
    parser.add_argument("--require", action="store_true", help="exit with 1 where it cannot be built")
    given = parser.parse_args(arguments)
    tools = find_toolchain()
    if isinstance(tools, str):
        print(f"skipped: {tools}")
        return int(given.require)
    print(f"nvcc {tools.version} at {tools.nvcc}, CUTLASS at {tools.includes[0]}")
    if not given.check:
        made = build(tools)
        total, peak = sum(file.processor_seconds for file in made), max(file.peak_mib for file in made)
        print(f"{LIBRARY.relative_to(ROOT)}: {total / 60:.1f} minutes of a processor, at most {peak} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Build the Ascend library; `make ascend-emulated` and `make ascend` run this.

``python -m tools.build_ascend --emulated`` compiles the kernels of csrc/ascend with the host's C++ compiler against the
emulation of csrc/ascend/emulation, into ``build/ascend_emulated/libtandem_ascend_emulated.so``: what has changed, with
all processors.  ``python -m tools.build_ascend`` compiles them for a device (dav-3510) with bisheng, which comes with
CANN and is refused by name where it is missing (exit status 0; with ``--require`` it is 1).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS, INCLUDE = ROOT / "csrc" / "ascend", ROOT / "csrc" / "include"
EMULATION, DEVICE = KERNELS / "emulation", KERNELS / "device"
EMULATED_BUILD, DEVICE_BUILD = ROOT / "build" / "ascend_emulated", ROOT / "build" / "ascend"
EMULATED_LIBRARY = EMULATED_BUILD / "libtandem_ascend_emulated.so"
DEVICE_LIBRARY = DEVICE_BUILD / "libtandem_ascend.so"
FLAGS = ("-std=c++20", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror")
DEFINES = ("-DTANDEM_ASCEND_EMULATION",)
# Not --enable-simt: that is for kernels of threads alone, which are started otherwise. The device's code is C++11 where
# nothing is said.
DEVICE_FLAGS = ("-x", "asc", "--npu-arch=dav-3510", "-std=c++20", "-O2", "-fPIC", "-ffp-contract=off", "-shared")
# Copies from UB to L1 take the hardware's own path; without it they go through global memory.
DEVICE_DEFINES = ("-DENABLE_CV_COMM_VIA_SSBUF=true",)
DEVICE_LIBRARIES = ("-ltiling_api", "-lplatform")  # for the facts of the device


def declarations() -> str:
    """The C declarations of all entries, as cffi reads them: without the preprocessor's lines."""
    headers = [INCLUDE / "tandem_ascend.h"]
    headers += [path for path in sorted(KERNELS.glob("*.h")) if path.name[0] != "_" and path.stem != "kernel"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in headers)
    kept = [line for line in text.split("\n") if not line.startswith("#")]
    return re.sub(r"\bTANDEM_API\s+", "", "\n".join(kept)).strip() + "\n"


def _write_declarations(folder: Path) -> Path:
    """A source with the declarations, written anew only where they have changed."""
    body = declarations()
    # A literal may hold 64 KiB; adjacent ones are joined.
    parts = "\n".join(f'R"###({body[i : i + 8000]})###"' for i in range(0, len(body), 8000))
    source = '#include "tandem_ascend.h"\n\nconst char *tandem_ascend_declarations(void) {\n  return\n'
    path, text = folder / "declarations.cpp", f"{source}{parts};\n}}\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return path


def kernel_sources() -> list[Path]:
    """The kernels, one op a file."""
    return sorted(KERNELS.glob("*.cpp"))


def _command(source: Path, target: Path) -> list[str]:
    """Compile one file of the emulation; the compiler notes what it included."""
    compiler = os.environ.get("CXX", "g++")
    words = [compiler, *FLAGS, *DEFINES, "-I", str(INCLUDE), "-I", str(KERNELS), "-MMD", "-MP"]
    return [*words, "-c", str(source), "-o", str(target)]


def _stale(source: Path, target: Path, command: str) -> bool:
    """Whether an object has to be made: another command, or a file it was made of is newer or gone."""
    note, made_of = target.with_suffix(".cmd"), target.with_suffix(".d")
    if not (target.exists() and note.exists() and made_of.exists()) or note.read_text(encoding="utf-8") != command:
        return True
    rule = made_of.read_text(encoding="utf-8").replace("\\\n", " ").split("\n")[0]
    built = target.stat().st_mtime_ns
    for name in rule.partition(":")[2].split():
        path = Path(name)
        if not path.exists() or path.stat().st_mtime_ns >= built:
            return True
    return False


def _compile(source: Path, target: Path) -> str | None:
    """Compile where needed; returns the compiler's text where it failed."""
    words = _command(source, target)
    command = hashlib.sha256(" ".join(words).encode()).hexdigest()
    if not _stale(source, target, command):
        return None
    note = target.with_suffix(".cmd")
    note.write_text("", encoding="utf-8")
    started = note.stat().st_mtime_ns  # by the clock of the file system
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        return f"{' '.join(words)}\n{done.stderr}"
    os.utime(target, ns=(started, started))  # what was edited while the compiler ran is newer
    note.write_text(command, encoding="utf-8")
    return None


def build_emulated(extra: Sequence[Path] = (), library: Path = EMULATED_LIBRARY, kernels: bool = True) -> Path:
    """The emulated library; compiles and links what has changed, one process at a time.

    Args:
        extra: further sources that are linked into it.
        library: where it goes; its folder is also that of its objects.
        kernels: False leaves the kernels out, for tests of the emulation itself.

    Raises:
        SystemExit: a source does not compile; the message is the compiler's.
    """
    library.parent.mkdir(parents=True, exist_ok=True)
    with (library.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _build_emulated(extra, library, kernels)


def _build_emulated(extra: Sequence[Path], library: Path, kernels: bool) -> Path:
    """As `build_emulated`, alone in the folder."""
    folder = library.parent
    sources = [*sorted(EMULATION.glob("*.cpp")), *(kernel_sources() if kernels else ()), *extra]
    sources.append(_write_declarations(folder))
    targets = [folder / f"{source.parent.name}-{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = [text for text in pool.map(_compile, sources, targets) if text]
    if failures:
        raise SystemExit("tools.build_ascend: " + "\n".join(failures))
    linked = " ".join(map(str, targets))
    note = library.with_suffix(".objects")
    fresh = library.exists() and note.exists() and note.read_text(encoding="utf-8") == linked
    if fresh and all(target.stat().st_mtime_ns <= library.stat().st_mtime_ns for target in targets):
        return library
    partial = library.with_suffix(f".{os.getpid()}.part")
    compiler = os.environ.get("CXX", "g++")
    subprocess.run([compiler, "-shared", "-Wl,--no-undefined", *map(str, targets), "-o", str(partial)], check=True)
    partial.replace(library)  # never a half-written library, and never one changed under a running process
    note.write_text(linked, encoding="utf-8")
    return library


def missing_compiler() -> str | None:
    """Why no library for a device can be built here; None where it can."""
    if shutil.which("bisheng") is not None:
        return None
    return "no bisheng on PATH; it comes with CANN 9.2: source set_env.sh of the toolkit"


def build_device() -> Path:
    """The library for a device, by one call of bisheng."""
    DEVICE_BUILD.mkdir(parents=True, exist_ok=True)
    sources = [*kernel_sources(), *sorted(DEVICE.glob("*.cpp")), _write_declarations(DEVICE_BUILD)]
    partial = DEVICE_LIBRARY.with_suffix(".part")
    words = ["bisheng", *DEVICE_FLAGS, *DEVICE_DEFINES, "-I", str(INCLUDE), "-I", str(KERNELS)]
    words += [*map(str, sources), *DEVICE_LIBRARIES, "-o", str(partial)]
    subprocess.run(words, check=True)
    partial.replace(DEVICE_LIBRARY)
    return DEVICE_LIBRARY


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--emulated", action="store_true", help="build the emulation, for this host")
    parser.add_argument("--require", action="store_true", help="exit with 1 where there is no compiler for the device")
    given = parser.parse_args(arguments)
    start = time.monotonic()
    if not given.emulated and (reason := missing_compiler()):
        print(f"skipped: {reason}")
        return int(given.require)
    library = build_emulated() if given.emulated else build_device()
    print(f"{library.relative_to(ROOT)}: {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

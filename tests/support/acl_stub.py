"""Builds the stand-in for the vendor's runtime, with which torch-npu loads where no NPU is."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import torch

SOURCE = Path(__file__).with_suffix(".c")
RUNTIME = "libascendcl.so"
# Names of the vendor's C functions; everything else that torch-npu lacks comes from torch or the system.
_VENDORS = re.compile(r"(acl|rt|Hccl|Msprof|ge)[A-Za-z]")
_LIBRARY = re.compile(r"\[(lib(?:hccl|ascendcl|acl_\w+|ge_runner|graph)\.so)\]")


def missing() -> str:
    """Why the stand-in cannot be used here; empty where it can."""
    try:
        version = importlib.metadata.version("torch-npu")
    except importlib.metadata.PackageNotFoundError:
        return "torch-npu is not installed (use an environment of its own)"
    absent = [tool for tool in ("gcc", "nm", "readelf") if shutil.which(tool) is None]
    return f"{', '.join(absent)} not found" if absent else "" if version else "torch-npu has no version"


def build(folder: Path) -> Path:
    """Make the libraries that torch-npu is linked against; ``folder`` goes on the loader's search path."""
    spec = importlib.util.find_spec("torch_npu")
    assert spec is not None and spec.origin is not None
    place = Path(spec.origin).parent
    own = [*place.glob("lib/*.so"), *place.glob("_C*.so")]
    torchs = Path(torch.__file__).parent / "lib"
    known = _symbols([*own, *torchs.glob("*.so*")], "--defined-only", r" [A-TV-Za-z] (\w+)")
    wanted = {name for name in _symbols(own, "--undefined-only", r" U (\w+)$") - known if _VENDORS.match(name)}
    written = set(re.findall(r"^(?:int|const char \*)\s*(\w+)\(", SOURCE.read_text(encoding="utf-8"), re.MULTILINE))
    rest = folder / "rest.c"
    rest.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(wanted - written)))
    _compile(folder / RUNTIME, SOURCE, rest)
    empty = folder / "empty.c"
    empty.touch()
    needed = {name for path in own for name in _LIBRARY.findall(_run("readelf", "-d", str(path)))}
    for name in sorted(needed - {RUNTIME}) + ["libopapi.so"]:
        _compile(folder / name, empty, folder / RUNTIME)
    return folder


def _compile(target: Path, *sources: Path) -> None:
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{target.name}", "-Wl,--no-as-needed"]
    _run("gcc", *flags, *map(str, sources), "-o", str(target))


def _symbols(libraries: Iterable[Path], kind: str, pattern: str) -> set[str]:
    told = (_run("nm", "-D", kind, str(path)) for path in libraries)
    return {name for text in told for name in re.findall(pattern, text, re.MULTILINE)}


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout

"""What is in the built CUDA library, read from its device code, and the tables of docs/CUDA_LIBRARY.md.

``python -m tools.cuda_library`` writes docs/cuda_library.json from the library that `make cuda` has built, and the
tables from that file; ``--check`` says whether the tables are those of the file, which needs no library.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tandem.backends.cuda import native
from tools import build_cuda
from tools.contract_docs import rewritten

ROOT = build_cuda.ROOT
FACTS, DOCUMENT = ROOT / "docs" / "cuda_library.json", ROOT / "docs" / "CUDA_LIBRARY.md"
INSTRUCTIONS = ("UTCQMMA", "UTCHMMA", "UTCOMMA", "UTCCP", "UTMALDG", "UTMASTG", "LDTM")


@dataclass(frozen=True, slots=True)
class DeviceKernel:
    """One kernel as it was compiled.

    Args:
        name: of the file where it holds one kernel of CUTLASS, else of the function.
        arch: what it was compiled for.
        registers: of a thread.
        spilled: bytes of stack and local memory of a thread.
        static_shared: bytes of shared memory that the kernel declares itself.
        instructions: how often each of `INSTRUCTIONS` occurs.
        pairs: whether its matrix instructions run on two multiprocessors.
    """

    name: str
    arch: str
    registers: int
    spilled: int
    static_shared: int
    instructions: dict[str, int]
    pairs: bool


def find_tools() -> Path | None:
    """The folder that holds cuobjdump and nvdisasm: Triton's, or one on PATH."""
    import triton

    bundled = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    if (bundled / "cuobjdump").exists() and (bundled / "nvdisasm").exists():
        return bundled
    found = shutil.which("cuobjdump")
    return Path(found).parent if found and shutil.which("nvdisasm") else None


def read_kernels(library: Path, objects: list[Path], tools: Path) -> list[DeviceKernel]:
    """Every kernel of the library, by name.

    Args:
        library: the shared library.
        objects: of it that hold kernels; those of CUTLASS have the names of these files.
        tools: where cuobjdump and nvdisasm are.
    """
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"}

    def dump(what: str, path: Path) -> str:
        command = [str(tools / "cuobjdump"), what, str(path)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    files = {symbol: path.stem for path in objects for symbol, _ in _USAGE.findall(dump("-res-usage", path))}
    sass = dump("-sass", library)
    code = dict(re.findall(r"Function : (\S+)\n(.*?)(?=\n\s*Function : |\Z)", sass, re.DOTALL))
    arch = " ".join(sorted(set(re.findall(r"^arch = (\S+)", sass, re.MULTILINE))))
    found = [
        _kernel(_title(symbol, files[symbol]), arch, line, code[symbol])
        for symbol, line in _USAGE.findall(dump("-res-usage", library))
    ]
    return sorted(found, key=lambda kernel: kernel.name)


_USAGE = re.compile(r"Function (\S+):\s*\n\s*(REG:.*)")


def _title(symbol: str, file: str) -> str:
    """Functions of this repository have short names; those of CUTLASS are known by their file."""
    own = re.match(r"_ZN6tandem(\d+)(\w+)", symbol)
    return own[2][: int(own[1])] if own else file


def _kernel(name: str, arch: str, usage: str, code: str) -> DeviceKernel:
    number = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", usage)}
    counts = {instruction: len(re.findall(rf"\b{instruction}\b", code)) for instruction in INSTRUCTIONS}
    return DeviceKernel(
        name,
        arch,
        number["REG"],
        number["STACK"] + number["LOCAL"],
        number["SHARED"],
        {instruction: count for instruction, count in counts.items() if count},
        bool(re.search(r"\bUTC\w+MMA\S*\.2CTA", code)),
    )


def collect() -> dict[str, Any]:
    """The contents of docs/cuda_library.json.

    Raises:
        SystemExit: the library or the tools that read it are not there.
    """
    toolchain, tools, library = build_cuda.find_toolchain(), find_tools(), native.library()
    if isinstance(toolchain, str):
        raise SystemExit(f"tools.cuda_library: {toolchain}")
    if tools is None or library is None:
        raise SystemExit(f"tools.cuda_library: {native.library_status().reason or 'no cuobjdump and nvdisasm'}")
    files = [json.loads((build_cuda.BUILD / f"{path.stem}.json").read_text("utf-8")) for path in build_cuda.sources()]
    return {
        "nvcc": toolchain.version,
        "cutlass": version("nvidia-cutlass"),
        "library_kib": build_cuda.LIBRARY.stat().st_size // 1024,
        "files": [{key: file[key] for key in ("source", "seconds", "processor_seconds", "peak_mib")} for file in files],
        "tiles": [asdict(kernel) for kernel in library.kernels()],
        "kernels": [asdict(kernel) for kernel in read_kernels(build_cuda.LIBRARY, build_cuda.objects(".cu"), tools)],
    }


def _table(head: str, rows: list[list[Any]]) -> str:
    titles = head.split("|")
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(str(cell).strip() for cell in line) + " |" for line in lines)


def build_table(facts: dict[str, Any]) -> str:
    """What building took."""
    files = facts["files"]
    rows = [[f"`{f['source']}`", f["processor_seconds"], f["seconds"], f["peak_mib"]] for f in files]
    used, passed = (round(sum(f[key] for f in files), 1) for key in ("processor_seconds", "seconds"))
    rows.append(["all, one after another", used, passed, max(f["peak_mib"] for f in files)])
    stated = f"nvcc {facts['nvcc']}, CUTLASS {facts['cutlass']}, library of {facts['library_kib']} KiB."
    return stated + "\n\n" + _table("file|seconds of a processor|seconds passed|largest process, MiB", rows)


def tile_table(facts: dict[str, Any]) -> str:
    """The tile classes of csrc/cuda/plan.h."""
    rows = [[f"`{t['name']}`", " x ".join(map(str, t["tile"])), t["multiprocessors"], t["use"]] for t in facts["tiles"]]
    return _table("kernel|outputs x tokens x depth|multiprocessors|for", rows)


def kernel_table(facts: dict[str, Any]) -> str:
    """What each kernel became; shared memory is what a launch asks for, where it asks."""
    shared = {tile["name"]: tile["shared_bytes"] for tile in facts["tiles"]}
    rows = []
    for kernel in facts["kernels"]:
        found = ", ".join(f"{count} {name}" for name, count in kernel["instructions"].items())
        size = shared.get(kernel["name"]) or kernel["static_shared"]
        rows.append([f"`{kernel['name']}`", kernel["arch"], kernel["registers"], kernel["spilled"], size, found or "-"])
    return _table("kernel|arch|registers|spilled bytes|shared bytes|instructions", rows)


PARTS = {"build": build_table, "tiles": tile_table, "kernels": kernel_table}


def rendered(facts: dict[str, Any], text: str) -> str:
    """The document with its tables."""
    parts = {name: functools.partial(make, facts) for name, make in PARTS.items()}
    return rewritten(text, parts, "docs/CUDA_LIBRARY.md")


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where the tables are stale")
    given = parser.parse_args(arguments)
    old = DOCUMENT.read_text(encoding="utf-8")
    if given.check:
        stale = rendered(json.loads(FACTS.read_text(encoding="utf-8")), old) != old
        print("docs/CUDA_LIBRARY.md is stale: run python -m tools.cuda_library" if stale else "up to date")
        return int(stale)
    facts = collect()
    FACTS.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    DOCUMENT.write_text(rendered(facts, old), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

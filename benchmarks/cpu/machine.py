"""What the machine can do: bytes read per second, and products of matrices per second."""

from __future__ import annotations

import functools
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu.peers import stream

STREAM_BYTES = 1 << 30  # far beyond every cache
GEMM_SIZES = (1024, 2048, 4096)


def facts() -> dict[str, Any]:
    """Processor, memory and software, for people."""
    cpu = _cpuinfo()
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    wanted = ("avx2", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "asimd", "bf16")
    return {
        "processor": cpu.get("model name", platform.processor()),
        "family": f"family {cpu.get('cpu family', '?')}, model {cpu.get('model', '?')}",
        "features": [name for name in wanted if name in cpu.get("flags", cpu.get("Features", "")).split()],
        "processors": os.cpu_count(),
        "caches": _caches(),
        "memory_bytes": int(meminfo["MemTotal"].split()[0]) * 1024,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpuinfo() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _caches() -> dict[str, str]:
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        found[f"L{level} {kind.lower()}"] = size
    return found


def seconds(function: Callable[[], object], rounds: int) -> list[float]:
    """Times of ``rounds`` calls after one that is not counted."""
    function()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return times


def summary(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def read_bandwidth(threads: int, rounds: int) -> dict[str, Any]:
    """Bytes per second read with one thread and with ``threads``, from ordinary pages and from huge ones."""
    found: dict[str, Any] = {"buffer_bytes": STREAM_BYTES}
    for name, huge in (("small", False), ("huge", True)):
        row: dict[str, Any] = {}
        for key, count in (("one", 1), ("all", threads)):
            read = stream.Stream(count, STREAM_BYTES, huge)
            read.once()
            row[key] = summary([read.once() for _ in range(rounds)])
            row |= {"huge_bytes": read.huge_bytes, "refused": read.refused}
            found["kernel"] = read.kernel
            read.close()
        found[name] = row
    return found


def gemm(dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """FLOP per second of torch.mm by size of square matrices, and the best."""
    found: dict[str, float] = {}
    for size in GEMM_SIZES:
        a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
        out = torch.empty(size, size, dtype=dtype)
        times = seconds(functools.partial(torch.mm, a, b, out=out), rounds)
        found[str(size)] = 2 * size**3 / min(times)
    return {"by_size": found, "best": max(found.values())}


def measure(threads: int, rounds: int) -> dict[str, Any]:
    """Everything of this file.  bf16 is measured wherever torch runs it, natively or not."""
    stream.build()  # anew: a loop compiled for another machine may lie there
    return {
        "facts": facts() | {"threads": threads},
        "stream": read_bandwidth(threads, rounds),
        "gemm_f32": gemm(torch.float32, rounds),
        "gemm_bf16": gemm(torch.bfloat16, rounds),
    }

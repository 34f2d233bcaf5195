"""What the machine can do: bytes read per second, and products of matrices per second."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cpu.sizes import BUILD

STREAM_BYTES = 1 << 30  # far beyond every cache
GEMM_SIZES = (1024, 2048, 4096)
SOURCE = Path(__file__).with_name("stream.c")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")


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


def _stream_kernel() -> Callable[[np.ndarray[Any, Any], int], object] | None:
    """The C loop, compiled on the spot; None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    target = BUILD / "stream.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(target)], check=True, capture_output=True)
    function = ctypes.CDLL(str(target)).stream_sum
    function.restype = ctypes.c_uint64
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return lambda data, threads: function(data.ctypes.data, data.size, threads)


def _torch_sum(data: np.ndarray[Any, Any], threads: int) -> object:
    torch.set_num_threads(threads)
    return torch.from_numpy(data.view(np.float32)).sum()


def stream(threads: int, rounds: int) -> dict[str, Any]:
    """Read bandwidth in bytes per second with one thread and with ``threads``; the floors use the best round."""
    kernel = _stream_kernel()
    read = kernel or _torch_sum
    data = np.ones(STREAM_BYTES // 8, dtype=np.uint64)
    found: dict[str, Any] = {
        "buffer_bytes": STREAM_BYTES,
        "kernel": f"sum of 64-bit words in C, cc {' '.join(FLAGS[:3])}" if kernel else "torch sum of f32",
    }
    for name, count in (("one", 1), ("all", threads)):
        times = seconds(functools.partial(read, data, count), rounds)
        found[name] = summary([STREAM_BYTES / t for t in times])
    torch.set_num_threads(threads)
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
    return {
        "facts": facts() | {"threads": threads},
        "stream": stream(threads, rounds),
        "gemm_f32": gemm(torch.float32, rounds),
        "gemm_bf16": gemm(torch.bfloat16, rounds),
    }

"""Reads memory as fast as the machine does: once for the table of the machine, and beside everything that is timed.

The bandwidth of a shared host changes within minutes, so a floor is taken from passes next to what it is a floor of.
Scripts of other environments read this file too; it needs nothing but numpy.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BUILD = Path(__file__).resolve().parents[3] / "build" / "bench"
SOURCE = Path(__file__).with_name("stream.c")
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")
BYTES = 1 << 28  # of a pass beside a round: far beyond every cache, and some milliseconds
PASSES = 3  # of a sample.  The first meets threads of an engine that still spin; the best one counts
HUGE_PAGE = 2 << 20
STEP = 256  # bytes, what the C loop reads at a time

Bytes = npt.NDArray[np.uint8]


class Stream:
    """A buffer that is read by threads, a contiguous part each.

    Args:
        threads: that read; they sleep between passes.
        nbytes: of the buffer.
        huge: in huge pages, where the machine is fastest and weights lie; else in pages of 4 KiB.
    """

    def __init__(self, threads: int, nbytes: int = BYTES, huge: bool = True) -> None:
        self.kernel, self._read = _kernel()
        self._data, self.refused = _buffer(nbytes, huge)
        self._parts = _parts(self._data, threads)
        self._pool = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="stream")

    @property
    def huge_bytes(self) -> int:
        """How much of the buffer lies in huge pages, as the system tells."""
        maps = Path("/proc/self/smaps")
        found = huge_bytes(self._data.ctypes.data, maps.read_text(encoding="utf-8")) if maps.is_file() else 0
        return min(found, self._data.nbytes)

    def once(self) -> float:
        """Bytes per second of one pass."""
        started = time.perf_counter()
        others = [self._pool.submit(self._read, part) for part in self._parts[1:]]
        self._read(self._parts[0])
        for other in others:
            other.result()
        return sum(part.nbytes for part in self._parts) / (time.perf_counter() - started)

    def sample(self) -> float:
        """Bytes per second now."""
        return max(self.once() for _ in range(PASSES))

    def close(self) -> None:
        """Let go of threads and memory."""
        self._pool.shutdown()
        self._parts, self._data = [], np.empty(0, dtype=np.uint8)


def library() -> Path:
    """Where the compiled loop of this source lies."""
    named = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()
    return BUILD / f"stream-{named[:10]}.so"


def build() -> Path | None:
    """Compile the loop for this machine; None without a compiler."""
    compiler, target = shutil.which("gcc") or shutil.which("cc"), library()
    if compiler is None:
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(target)], check=True, capture_output=True)
    return target


def _kernel() -> tuple[str, Callable[[Bytes], object]]:
    """What reads a part, with the interpreter's lock let go, and its description."""
    path = library() if library().is_file() else build()
    if path is None:
        return "sum of 64-bit words by numpy", lambda part: part.view(np.uint64).sum()
    function = ctypes.CDLL(str(path)).stream_sum
    function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_size_t]
    name = f"four sums of 64 bytes in C, cc {' '.join(FLAGS[:2])}"
    return name, lambda part: function(part.ctypes.data, part.nbytes)


def _buffer(nbytes: int, huge: bool) -> tuple[Bytes, str]:
    """Memory that is written to, aligned to huge pages, and why they were refused, if they were.

    It is private: what `mmap` makes by itself is shared, and that gets no huge pages with most systems' settings.
    """
    memory = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    refused, advice = "", getattr(mmap, "MADV_HUGEPAGE" if huge else "MADV_NOHUGEPAGE", None)
    try:
        if advice is None:
            raise OSError("this Python does not know the advice")
        memory.madvise(advice)
    except OSError as error:  # a kernel without huge pages
        refused = str(error) if huge else ""
    whole = np.frombuffer(memory, dtype=np.uint8)
    first = -whole.ctypes.data % HUGE_PAGE
    data = whole[first : first + nbytes]
    data[:] = 1
    return data, refused


def _parts(data: Bytes, threads: int) -> list[Bytes]:
    each = data.nbytes // threads // STEP * STEP
    return [data[i * each : (i + 1) * each] for i in range(threads)]


def huge_bytes(address: int, maps: str) -> int:
    """Bytes in huge pages of the mapping that an address lies in, by the text of /proc/self/smaps."""
    inside = False
    for line in maps.splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            first, last = (int(value, 16) for value in name.split("-"))
            inside = first <= address < last
        elif inside and name == "AnonHugePages:":
            return int(rest.split()[0]) * 1024
    return 0


def between(before: float, after: float) -> float:
    """The bandwidth of a round from the samples on its two sides."""
    return (before + after) / 2


def beside(stream: Stream, function: Callable[[], Any], rounds: int, least_s: float = 0.0) -> dict[str, list[float]]:
    """Seconds of calls after one that is not counted, and the bandwidth of each round.

    Args:
        rounds: calls, at least.
        least_s: seconds that they take together, at least: the shorter a round, the more it varies.
    """
    function()
    times: list[float] = []
    samples = [stream.sample()]
    while len(times) < rounds or sum(times) < least_s:
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
        samples.append(stream.sample())
    return {"seconds": times, "bandwidth": list(map(between, samples, samples[1:]))}

"""Values of SIMT functions against numpy: shuffles, votes, reductions, atomics and barriers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from support.ascend_scenarios import emulation

Array = np.ndarray[Any, np.dtype[np.int32]]
LANES = np.arange(32)
KERNELS = Path(__file__).resolve().parents[3] / "csrc" / "ascend"


def _run(entry: str, *arguments: Array | int, fault: str = "") -> None:
    library = emulation()
    for argument in arguments:
        if not isinstance(argument, int):
            library.lib.tandem_ascend_register(library.ffi.cast("void *", argument.ctypes.data), argument.nbytes)
    given = [one if isinstance(one, int) else library.ffi.cast("int32_t *", one.ctypes.data) for one in arguments]
    status = getattr(library.lib, entry)(*given)
    library.lib.tandem_ascend_forget_all()
    assert status == (4 if fault else 0) and library.last_fault().startswith(fault), library.last_fault()


def _warp_results(x: Array) -> Array:
    """The sixteen numbers of each lane of a warp."""
    group8, group4, group2 = LANES // 8 * 8, LANES // 4 * 4, LANES // 2 * 2
    up3 = np.where(LANES >= 3, LANES - 3, LANES)
    up2 = np.where(LANES - 2 >= group4, LANES - 2, LANES)
    down7 = np.where(LANES + 7 < 32, LANES + 7, LANES)
    down1 = np.where(LANES + 1 < group2 + 2, LANES + 1, LANES)
    sources = [np.full(32, 5), group8 + 3, up3, up2, down7, down1, LANES ^ 9, LANES ^ 3]
    return np.stack([x[source] for source in sources], 1)


def test_warp_functions() -> None:
    """Three warps; a third of the lanes goes through a branch of its own."""
    x = np.random.default_rng(1).integers(-500, 500, 96).astype(np.int32)
    out = np.zeros((96, 16), np.int32)
    _run("simt_warp", x, out)
    for warp in range(3):
        rows, mine = out[32 * warp : 32 * warp + 32], x[32 * warp : 32 * warp + 32]
        assert np.array_equal(rows[:, :8], _warp_results(mine))
        bits = np.uint32(((mine > 0).astype(np.uint64) << LANES.astype(np.uint64)).sum())
        assert (rows[:, 8].view(np.uint32) == bits).all()
        assert (rows[:, 9] == 2).all()
        assert (rows[:, 10] == mine.sum()).all()
        assert (rows[:, 11] == mine.max()).all() and (rows[:, 12] == mine.min()).all()
        third = (np.arange(32) + 32 * warp) % 3 == 0
        active = np.uint32((third.astype(np.uint64) << LANES.astype(np.uint64)).sum())
        assert (rows[third, 13].view(np.uint32) == active).all() and (rows[~third, 13] == 0).all()
        assert (rows[third, 14] == mine[third].sum()).all()
        assert np.array_equal(rows[:, 15], LANES + 100 * LANES + 10000 * warp)


def test_block_functions() -> None:
    """A sum through UB, and a histogram, a maximum and a parity by atomics."""
    x = np.random.default_rng(2).integers(0, 1000, 96).astype(np.int32)
    out = np.zeros(33, np.int32)
    _run("simt_block", x, out)
    assert out[0] == x.sum()
    assert np.array_equal(out[1:17], np.bincount(x % 16, minlength=16))
    assert out[25] == x.max() and out[26] == np.bitwise_xor.reduce(x)


def test_memory_is_asked_for() -> None:
    """A kernel that did not say how much UB its SIMT function uses."""
    x, out = np.zeros(96, np.int32), np.zeros(33, np.int32)
    _run("simt_block_unannounced", x, out, fault="ub-overflow")


def test_barriers() -> None:
    """1024 threads exchange values with their neighbours, ten times."""
    out = np.zeros(1024, np.int32)
    _run("simt_barriers", out, 10)
    assert np.array_equal(out, np.arange(1024) + 10)


def test_no_barrier() -> None:
    """Threads that never wait, on four cores."""
    x = np.arange(10_001, dtype=np.int32)
    out = np.zeros_like(x)
    _run("simt_triple", x, out, len(x))
    assert np.array_equal(out, 3 * x)


def test_kernels_state_their_launch_bounds() -> None:
    """The bound decides how many registers a thread has, and a compiler for the host does not see it.

    It is a constant, and each function is started with that constant or with what its kernel derives from it.
    """
    for path in sorted(KERNELS.glob("*.[ch]*")):
        text = path.read_text(encoding="utf-8")
        functions = re.findall(r"__simt_vf__\s+(\w+)", text)
        assert set(functions) <= {"__launch_bounds__"}, path.name
        for bound in re.findall(r"__launch_bounds__\(([^)]*)\)", text):
            assert re.fullmatch(r"[\w *]+", bound), f"{path.name}: {bound}"


def test_kernels_know_no_double() -> None:
    """The device has none, and a compiler for the host would take it."""
    for path in sorted(KERNELS.glob("*.[ch]*")):
        code = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r"\bdouble\b", code), path.name

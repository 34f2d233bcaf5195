"""Rounds of the CPU benchmark, and what stands beside them: the stream of bytes, the time inside native kernels."""

from __future__ import annotations

import itertools
import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.cpu import native_time, runs
from benchmarks.cpu.native_time import NativeClock, native_clock
from benchmarks.cpu.peers import stream
from tandem.backends.cpu import native
from tandem.backends.cpu.backend import CpuBackend
from tandem.backends.cpu.loading import native_status
from tandem.contract.plan import Plan
from tandem.contract.types import QFormat

MIB = 1 << 20
SMAPS = """7f0000200000-7f0000400000 rw-p 00000000 00:00 0
Size:               2048 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac hg
7f0000400000-7f0000800000 rw-p 00000000 00:00 0 [anon: name]
AnonHugePages:         0 kB
"""


@pytest.fixture(params=["C", "numpy"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """What reads: the loop, compiled in a folder of the test, or numpy where there is no compiler."""
    monkeypatch.setattr(stream, "BUILD", tmp_path)
    if request.param == "numpy":
        monkeypatch.setattr(stream.shutil, "which", lambda name: None)
    elif stream.build() is None:
        pytest.skip("no C compiler")
    return str(request.param)


def test_every_byte_is_read_once(kernel: str) -> None:
    """Three threads: parts follow one another; what is left is less than a step of each."""
    read = stream.Stream(3, 4 * MIB)
    assert ("numpy" in read.kernel) == (kernel == "numpy")
    read._data[:] = np.random.default_rng(0).integers(0, 256, read._data.nbytes, dtype=np.uint8)
    sums = [int(read._read(part)) for part in read._parts]  # type: ignore[call-overload]
    each = 4 * MIB // 3 // 256 * 256
    words = read._data[: 3 * each].view(np.uint64).reshape(3, -1)
    assert sums == [sum(map(int, row)) % (1 << 64) for row in words]
    assert read.once() > 0 and read.sample() > 0
    read.close()


def test_a_sample_is_the_best_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = iter([1.0, 3.0, 2.0])
    monkeypatch.setattr(stream.Stream, "once", lambda self: next(passes))
    assert stream.Stream(1, MIB).sample() == 3.0


def test_the_buffer_begins_with_a_huge_page_and_small_pages_stay_small() -> None:
    huge, small = stream.Stream(1, 4 * MIB), stream.Stream(1, 4 * MIB, huge=False)
    assert huge._data.ctypes.data % stream.HUGE_PAGE == 0
    assert 0 <= huge.huge_bytes <= 4 * MIB and small.huge_bytes == 0


def test_refused_huge_pages_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert "does not know" in stream.Stream(1, MIB).refused and not stream.Stream(1, MIB, huge=False).refused


def test_huge_bytes_of_a_mapping() -> None:
    assert stream.huge_bytes(0x7F0000200000, SMAPS) == 2 * MIB
    assert stream.huge_bytes(0x7F0000400000, SMAPS) == stream.huge_bytes(0x1000, SMAPS) == 0


def test_rounds_have_the_bandwidth_on_their_two_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    samples, calls = iter([1.0, 3.0, 7.0]), itertools.count()
    monkeypatch.setattr(stream.Stream, "sample", lambda self: next(samples))
    found = stream.beside(stream.Stream(1, MIB), lambda: next(calls), 2)
    assert found["bandwidth"] == [2.0, 5.0] and len(found["seconds"]) == 2
    assert next(calls) == 3  # the first is not counted


def test_short_rounds_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of 0.25 s: two are asked for, four take a second."""
    monkeypatch.setattr(stream.Stream, "sample", lambda self: 1.0)
    times = itertools.count()
    monkeypatch.setattr(stream.time, "perf_counter", lambda: next(times) / 4)
    assert stream.beside(stream.Stream(1, MIB), lambda: None, 2, 1.0)["seconds"] == [0.25] * 4


def test_the_clock_adds_up_what_functions_take(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 3.5, 10.0, 10.25])
    monkeypatch.setattr(native_time.time, "perf_counter", lambda: next(times))
    clock = NativeClock()
    assert clock.timed(lambda value: value)(7) == 7 and clock.timed(lambda: 0)() == 0
    assert (clock.seconds, clock.calls) == (2.75, 2)


@pytest.mark.skipif(not native_status().available, reason="no native kernels")
def test_recordings_run_under_the_clock_and_after_it() -> None:
    """A call counts, one that is written down does not, a replay of two counts once."""
    library, backend = native.library(), CpuBackend.open(0, {})
    raw, api, add = dict(library.entries), library.api, native.Recorder.add
    quantize = Plan(backend).bind("quantize", "test", fmt="mxfp8")
    x = torch.ones(2, 64, dtype=torch.bfloat16)
    with native_clock(library) as clock:
        assert clock is not None
        wanted = quantize(x, QFormat.MXFP8)
        assert clock.calls == 1 and clock.seconds > 0
        made = []
        graph = backend.capture(lambda: made.extend(quantize(x, QFormat.MXFP8) for _ in range(2)))
        assert clock.calls == 1
        graph.replay()
        assert clock.calls == 2
    assert library.entries == raw and library.api is api and native.Recorder.add is add
    for one in made:
        one.data.zero_()
    graph.replay()
    assert clock.calls == 2 and all(torch.equal(one.data, wanted.data) for one in made)
    backend.close()


def test_without_native_kernels_there_is_no_clock() -> None:
    with native_clock(None) as clock:
        assert clock is None


class Scripted:
    """An engine whose calls run the rows, give the tokens and take the steps (default: one) that a script says."""

    def __init__(self, *script: tuple[int, ...]) -> None:
        self.stats = SimpleNamespace(rows=0, tokens=0, steps=0)
        self.vocab_size, self.asked, self._script = 1000, [], list(script)
        self.engine = self  # it stands for the LLM too

    @property
    def left(self) -> int:
        """Calls that were not made."""
        return len(self._script)

    def submit(self, ids: list[int], params: Any) -> None:
        """Note what a request may give."""
        self.asked.append(params.max_tokens)

    def step(self) -> None:
        """The next call of the script."""
        rows, tokens, *steps = self._script.pop(0)
        self.stats.rows += rows
        self.stats.tokens += tokens
        self.stats.steps += sum(steps) or 1


def test_a_round_begins_when_all_requests_decode() -> None:
    """The second step gives the third request its first token while two decode; three tokens do not mean three rows."""
    engine: Any = Scripted((256, 2), (130, 3), (3, 3), (3, 3), (3, 3))
    runs.start(engine, 3, 2, seed=0)
    assert engine.left == 2
    assert set(engine.asked) == {2 + runs.spare(3)} and len(engine.asked) == 3
    assert runs.together(engine, 3, 2)[1] == 2
    assert engine.left == 0


def test_a_round_ends_with_a_turn() -> None:
    """Five steps are wanted; the second turn of four takes it to eight, and all of them count."""
    engine: Any = Scripted((12, 12, 4), (12, 12, 4), (3, 3))
    seconds, ran = runs.together(engine, 3, 5)
    assert (ran, engine.left) == (8, 1) and seconds > 0


def test_a_round_in_which_a_request_ended_is_refused() -> None:
    with pytest.raises(RuntimeError, match="2 steps of 3 requests ran 5 rows"):
        runs.together(Scripted((3, 3), (2, 2)), 3, 2)  # type: ignore[arg-type]

"""Memory of weights and of steps: huge pages, no byte twice, and none kept that nothing needs."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.backends.cpu import memory, recording, temporary
from tandem.model.heap import give_back

MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def mapping(address: int) -> dict[str, str]:
    """What the system says of the mapping that an address lies in; ``flags``: its permissions."""
    found: dict[str, str] = {}
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if "-" in name.partition(" ")[0]:
            if found:
                return found
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            found = {"flags": line.split()[1]} if first <= address < last else {}
        elif found:
            found[name] = value
    return found


def resident() -> int:
    """Private bytes of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


@pytest.mark.skipif(not MODES.exists() or "[never]" in MODES.read_text(), reason="a system without huge pages")
def test_weights_lie_in_huge_pages() -> None:
    held = memory.Arena().copy(torch.ones(3 * memory.HUGE, dtype=torch.uint8))
    found = mapping(held.data_ptr())
    assert found["flags"].endswith("p")
    # At least the two that lie in it whole, wherever it begins.
    assert int(found["AnonHugePages"].split()[0]) * 1024 >= 2 * memory.HUGE


def test_room_that_a_large_array_left_is_used() -> None:
    arena = memory.Arena()
    large, middle = memory.CHUNK * 3 // 4, memory.CHUNK // 8
    sizes = [large, large, middle, 100, middle, 3, 2 * memory.CHUNK]
    sources = [torch.full((1,), i, dtype=torch.uint8).expand(size) for i, size in enumerate(sizes)]
    copies = [arena.copy(source) for source in sources]
    for i, copy in enumerate(copies):
        assert copy[0] == copy[-1] == i and copy.data_ptr() % memory.ALIGNMENT == 0
    # Three regions: the small ones lie behind one of the first two.
    small = [copy.data_ptr() for copy in copies[2:6]]
    starts = [copy.data_ptr() for copy in copies[:2]]
    assert all(any(0 < place - start < memory.CHUNK for start in starts) for place in small)


def test_temporary_arrays_never_overlap() -> None:
    pool, rng, held = temporary.Pool(temporary.REGION), np.random.default_rng(0), {}
    for step in range(600):
        if held and rng.random() < 0.48:
            number = list(held)[int(rng.integers(len(held)))]
            array = held.pop(number)
            assert int(array[0]) == int(array[-1]) == number % 251
        else:
            array = pool.empty((int(rng.integers(1, 1 << 20)),), torch.uint8)
            array.fill_(step % 251)
            held[step] = array
    assert all(int(array.min()) == int(array.max()) == number % 251 for number, array in held.items())
    assert pool.nbytes == temporary.REGION
    held.clear()
    del array
    # Everything is one place again: nothing but one array of the whole region fits.
    whole = pool.empty((temporary.REGION,), torch.uint8)
    assert pool.nbytes == temporary.REGION
    del whole
    pool.give_back()
    assert pool.nbytes == 0


def test_what_is_dropped_is_used_again() -> None:
    pool = temporary.Pool(temporary.REGION)
    first, second = pool.empty((1 << 20,), torch.uint8), pool.empty((1 << 20,), torch.uint8)
    address = first.data_ptr()
    part = first[5:]
    del first
    assert pool.empty((1 << 20,), torch.uint8).data_ptr() not in (address, second.data_ptr())  # a view is there still
    holder = [part]
    del part
    thread = threading.Thread(target=holder.clear)  # dropped by another thread than made it
    thread.start()
    thread.join()
    assert pool.empty((1 << 20,), torch.uint8).data_ptr() == address


def test_a_region_in_use_is_not_given_back() -> None:
    pool = temporary.Pool(temporary.REGION)
    held = pool.empty((1 << 20,), torch.uint8)
    pool.give_back()
    held.fill_(3)
    assert pool.nbytes == temporary.REGION and int(held.max()) == 3


def test_an_array_larger_than_a_region() -> None:
    pool = temporary.Pool(temporary.REGION)
    assert pool.empty((temporary.REGION + 1,), torch.uint8).shape == (temporary.REGION + 1,)


@pytest.mark.parametrize("rows", [1, temporary.LEAST // 64])
def test_shape_and_dtype(rows: int) -> None:
    made = temporary.empty((rows, 4, 8), torch.bfloat16)
    assert made.shape == (rows, 4, 8) and made.dtype is torch.bfloat16 and made.is_contiguous()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_freed_heap_goes_back() -> None:
    """Blocks too small to be mapped one by one, with one on top that keeps the heap from shrinking by itself."""
    gc.collect()
    give_back()
    blocks = [torch.ones(16 << 10, dtype=torch.uint8) for _ in range(2000)]
    top = torch.ones(16 << 10, dtype=torch.uint8)
    full = resident()
    blocks.clear()
    give_back()
    assert full - resident() > 2000 * (16 << 10) // 2
    assert int(top[0]) == 1


DECODE = """
import sys
from tandem import LLM, SamplingParams
llm = LLM(backend="cpu", options={"speculation.draft_tokens": 0}, show_progress=False)
llm.generate([[5, 6, 7]], SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True))
assert llm.engine._parts.runner.graphs.captured, "no step was written down"
print(*(name for name in ("torch._dynamo", "torch._inductor", "sympy", "triton") if name in sys.modules))
"""


def test_serving_imports_no_compiler() -> None:
    """Writing a step down once imported torch's: 130 MB, and a second within a request."""
    done = subprocess.run([sys.executable, "-c", DECODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_temporaries_of_a_thread_while_another_records() -> None:
    """One thread writes a step down; the other's arrays are its own, and so are those made when both are done."""
    inside, done = threading.Event(), threading.Event()

    def record() -> None:
        with recording._Guard(recording.Memory()):
            inside.set()
            done.wait()

    thread = threading.Thread(target=record)
    thread.start()
    inside.wait()
    before = temporary._pool.nbytes
    held = [temporary.empty((temporary.REGION // 2,), torch.uint8) for _ in range(3)]
    assert temporary._pool.nbytes > before
    done.set()
    thread.join()
    del held

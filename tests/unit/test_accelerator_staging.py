"""The ring of pinned memory, with a queue that copies as late as it may."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from support.late_queue import LateQueue

from tandem.accelerator.staging import Ring, Staging


def staging(size: int) -> tuple[Staging, LateQueue]:
    queue = LateQueue()
    return Staging(queue, lambda count: torch.full((count,), 0xFF, dtype=torch.uint8), size), queue


def test_sources_may_change_at_once_and_the_order_is_that_of_the_calls() -> None:
    moved, queue = staging(4096)
    rng = np.random.default_rng(0)
    expected, targets = [], []
    for _ in range(200):
        array = rng.integers(0, 255, rng.integers(0, 900), dtype=np.uint8)
        target = torch.zeros(array.size, dtype=torch.uint8)
        moved.upload(array, target)
        expected.append(array.copy())
        targets.append(target)
        array[:] = 0
    assert queue.done < len(queue.work), "nothing was left to copy late"
    queue.run(len(queue.work))
    assert all(np.array_equal(t.numpy(), e) for t, e in zip(targets, expected, strict=True))


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.uint16, np.bool_])
def test_arrays_larger_than_the_ring_go_in_pieces(dtype: type) -> None:
    moved, queue = staging(1024)
    array = (np.arange(5000).reshape(50, 100) % 251).astype(dtype)
    target = torch.empty((50, 100), dtype=torch.from_numpy(np.empty(0, dtype)).dtype)
    moved.upload(array.T.copy().T, target)
    queue.run(len(queue.work))
    assert np.array_equal(target.numpy(), array)


def test_results_survive_the_ring_going_round() -> None:
    moved, queue = staging(2048)
    futures = []
    for step in range(40):
        source = torch.full((150,), float(step))
        futures.append(moved.download(source))
    assert not futures[-1].ready() and futures[0].ready()
    assert [f.result()[7] for f in futures] == list(range(40))
    assert all(f.ready() for f in futures) and queue.done == len(queue.work)
    large = moved.download(torch.arange(4096))
    assert np.array_equal(large.result(), np.arange(4096))
    assert moved.download(torch.empty((0, 3))).result().shape == (0, 3)


def test_several_threads_may_ask_for_one_result() -> None:
    moved, _ = staging(2048)
    future = moved.download(torch.arange(100))
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(int(future.result().sum()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [4950] * 8


def test_pieces_never_overlap_while_they_are_held() -> None:
    ring = Ring(torch.zeros(2048, dtype=torch.uint8))
    rng = np.random.default_rng(3)
    live: list[tuple[int, int]] = []
    for _ in range(500):
        _, start, end = ring.take(int(rng.integers(0, 1500)))
        assert all(end <= first or last <= start for first, last in live)
        live.append((start, end))
        ring.hold(start, end, lambda piece=(start, end): live.remove(piece))

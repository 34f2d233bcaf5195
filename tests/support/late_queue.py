"""A queue of copies that runs as late as it may."""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensor = torch.Tensor


class LateQueue:
    """Copies in order, and only when somebody waits for a mark."""

    def __init__(self) -> None:
        self.work: list[Callable[[], object]] = []
        self.done = 0

    def copy(self, target: Tensor, source: Tensor) -> None:
        self.work.append(lambda: target.copy_(source))

    def mark(self) -> LateMark:
        return LateMark(self, len(self.work))

    def run(self, until: int) -> None:
        while self.done < until:
            self.work[self.done]()
            self.done += 1


class LateMark:
    def __init__(self, queue: LateQueue, place: int) -> None:
        self.queue, self.place = queue, place

    def query(self) -> bool:
        return self.queue.done >= self.place

    def synchronize(self) -> None:
        self.queue.run(self.place)

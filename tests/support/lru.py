"""What a least-recently-used cache would hit on a trace: written without the block manager, from hash ids alone."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Entry:
    """A cached block, and whether the window before its end is kept and why."""

    parent: int | None
    window: int | None = None  # place in the order of giving up; None: not kept
    kept_for: str = ""  # "end", or "" for the inside of a prompt
    resumed: bool = False


@dataclass
class Lru:
    """Blocks by hash id, the least recently used first.

    Args:
        blocks: how many fit, those of the request being served included.
        ends: windows kept at most; None: no limit.
    """

    blocks: int
    ends: int | None = None
    cached: OrderedDict[int, Entry] = field(default_factory=OrderedDict)
    children: Counter[int | None] = field(default_factory=Counter)
    clock: int = 0
    tokens: int = 0
    hit_tokens: int = 0
    hits: int = 0
    too_long: int = 0
    evicted: int = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def serve(self, length: int, ids: Sequence[int], size: int = 512) -> int:
        """Serve a prompt; returns the tokens that were found."""
        if len(ids) > self.blocks:
            self.too_long += 1
            return 0
        self.tokens += length
        taken = self._find(ids[: (length - 1) // size])
        if taken:
            end = self.cached[ids[taken - 1]]
            end.resumed, end.kept_for, end.window = True, "end", self.tick()
        self._make_room(len(ids) - taken, set(ids[:taken]))
        self._add(ids[: length // size], taken)
        if self.ends is not None:
            self._forget_windows()
        self.hit_tokens += taken * size
        self.hits += taken > 0
        return taken * size

    def _find(self, ids: Sequence[int]) -> int:
        count = 0
        while count < len(ids) and ids[count] in self.cached:
            count += 1
        while count and self.cached[ids[count - 1]].window is None:
            count -= 1
        return count

    def _make_room(self, more: int, pinned: set[int]) -> None:
        over, oldest = len(self.cached) + more - self.blocks, []
        for block in self.cached:
            if len(oldest) >= over:
                break
            if block not in pinned:
                oldest.append(block)
        for block in oldest:
            self.children[self.cached.pop(block).parent] -= 1
            self.evicted += 1

    def _add(self, ids: Sequence[int], taken: int) -> None:
        for place in range(taken, len(ids)):
            before = ids[place - 1] if place else None
            if ids[place] not in self.cached:
                self.cached[ids[place]] = Entry(before)
                self.children[before] += 1
            entry = self.cached[ids[place]]
            if entry.window is None:
                entry.window, entry.kept_for = self.tick(), ""
            if before is not None:
                self._pass(before)
        for block in reversed(ids):  # the deepest first, so that it is the oldest of them
            self.cached.move_to_end(block)
        if ids and (end := self.cached[ids[-1]]).window is not None:
            end.window, end.kept_for = self.tick(), "end"

    def _pass(self, block: int) -> None:
        """A prompt goes on after this block: its window is worth keeping only where prompts part or resumed."""
        entry = self.cached[block]
        if entry.window is None or entry.resumed:
            return
        if self.children[block] > 1:
            entry.window, entry.kept_for = self.tick(), "end"
        elif entry.kept_for:
            entry.window, entry.kept_for = self.tick(), ""

    def _forget_windows(self) -> None:
        kept = [e for e in self.cached.values() if e.window is not None]
        kept.sort(key=lambda e: (e.kept_for == "end", e.window))
        for entry in kept[: max(0, len(kept) - self.ends)]:
            entry.window = None

"""Time that an engine spends inside native kernels: of a step as it runs, most of it one replay of a recording."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tandem.backends.cpu import native


@dataclass(slots=True)
class NativeClock:
    """Seconds inside C functions and how often one was entered, since the clock was made."""

    seconds: float = 0.0
    calls: int = 0

    def timed(self, function: Callable[..., int]) -> Callable[..., int]:
        """The function, its time added up."""

        def call(*args: Any) -> int:
            started = time.perf_counter()
            status = function(*args)
            self.seconds += time.perf_counter() - started
            self.calls += 1
            return status

        return call


@contextmanager
def native_clock(library: native.NativeLibrary | None) -> Iterator[NativeClock | None]:
    """A clock around the kernels and replays of a library while the context lasts; None without native kernels."""
    if library is None:
        yield None
        return
    clock, raw, api, add = NativeClock(), dict(library.entries), library.api, native.Recorder.add

    def add_raw(self: native.Recorder, entry: native.Entry, words: bytes, arguments: tuple[Any, ...]) -> None:
        """A recording is a list of C functions, not of those that are timed."""
        add(self, raw[entry.name], words, arguments)

    timed = {name: dataclasses.replace(entry, function=clock.timed(entry.function)) for name, entry in raw.items()}
    library.entries.update(timed)
    library.api = SimpleNamespace(replay=clock.timed(api.replay), status_string=api.status_string)
    native.Recorder.add = add_raw  # type: ignore[method-assign]
    try:
        yield clock
    finally:
        library.entries.update(raw)
        library.api = api
        native.Recorder.add = add  # type: ignore[method-assign]


def cost_s(calls: int = 4_000) -> float:
    """Seconds that timing a call adds to it, where nothing else interrupts."""

    def nothing(*_: object) -> int:
        return 0

    plain, timed = _seconds(nothing, calls), _seconds(NativeClock().timed(nothing), calls)
    return (timed - plain) / calls


def _seconds(function: Callable[..., int], calls: int) -> float:
    times = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(calls):
            function(b"")
        times.append(time.perf_counter() - started)
    return min(times)

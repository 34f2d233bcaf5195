"""Calls that repeat: first as usual, then captured, then replayed; the one used longest ago makes room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandem.engine import captures
from tandem.engine.captures import Captures


class Device:
    """Captures by keeping the function; writes down what happens."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def capture(self, function: Callable[[], Any]) -> Device:
        function()
        self.log.append("capture")
        return self

    def replay(self) -> None:
        self.log.append("replay")

    def synchronize(self) -> None:
        self.log.append("wait")


class Call:
    """Returns how often it was called."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count


def test_first_as_usual_then_captured_then_replayed() -> None:
    device, call = Device(), Call()
    own = Captures(device, True)  # type: ignore[arg-type]
    assert not own.repeats("a") and own.run("a", call) == 1 and device.log == []
    assert not own.repeats("a") and own.run("a", call) == 2 and device.log == ["capture", "replay"]
    # A replay gives what the captured call gave, and calls nothing.
    assert own.repeats("a") and own.run("a", Call()) == 2 and call.count == 2
    assert device.log == ["capture", "replay", "replay"] and (own.captured, own.replayed) == (1, 2)


def test_keys_have_their_own_captures() -> None:
    device, first, second = Device(), Call(), Call()
    own = Captures(device, True)  # type: ignore[arg-type]
    for _ in range(3):
        own.run(("rows", 1), first)
        own.run(("rows", 2), second)
    assert (first.count, second.count) == (2, 2) and (own.captured, own.replayed) == (2, 4)


def test_without_graphs_every_call_runs() -> None:
    device, call = Device(), Call()
    own = Captures(device, False)  # type: ignore[arg-type]
    assert [own.run("a", call) for _ in range(3)] == [1, 2, 3]
    assert not own.repeats("a") and device.log == []


def test_what_was_used_longest_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "MOST", 2)
    device, calls = Device(), {name: Call() for name in "abc"}
    own = Captures(device, True)  # type: ignore[arg-type]
    for name in "aabba":
        own.run(name, calls[name])
    device.log.clear()
    own.run("c", calls["c"])  # "b" is gone, but nothing of it may still run
    assert device.log == ["wait"]
    assert own.repeats("a") and not own.repeats("b")
    own.run("b", calls["b"])
    assert calls["b"].count == 3 and not own.repeats("a")


def test_a_failed_first_call_leaves_nothing() -> None:
    device, call = Device(), Call()
    own = Captures(device, True)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        own.run("a", lambda: 1 // 0)
    assert own.run("a", call) == 1 and device.log == []


def test_a_failed_capture_is_tried_again() -> None:
    device, call = Device(), Call()
    own = Captures(device, True)  # type: ignore[arg-type]

    def fails_once() -> int:
        if call() == 2:
            raise OSError("no power")
        return call.count

    assert own.run("a", fails_once) == 1
    with pytest.raises(OSError):
        own.run("a", fails_once)
    assert own.run("a", fails_once) == 3 and device.log == ["capture", "replay"]

"""Every planted fault is caught under its name, and its corrected sibling passes."""

from __future__ import annotations

import pytest
from support.ascend_scenarios import emulation, scenarios

OK, FAULT = 0, 4


@pytest.mark.parametrize(("name", "fault"), scenarios())
def test_fault_is_caught(name: str, fault: str) -> None:
    """With the mistake: this fault, with a text that says where, what and what to do."""
    status, text = emulation().run(name, fixed=False)
    assert status == FAULT, f"{name}: status {status}"
    assert text.startswith(f"{fault}: "), text
    assert "; " in text and len(text) > 40, text


@pytest.mark.parametrize("name", [name for name, _ in scenarios()])
def test_corrected_sibling_passes(name: str) -> None:
    """Without the mistake there is no fault, so the other test does not pass by the emulation failing always."""
    assert emulation().run(name, fixed=True) == (OK, "")


def test_a_fault_leaves_nothing_behind() -> None:
    """After each kind of fault the same correct kernel runs."""
    for name, _ in scenarios():
        emulation().run(name, fixed=False)
        assert emulation().run("mte2_to_v", fixed=True) == (OK, ""), name


def test_stamps_start_anew() -> None:
    """Launches of many barriers use up the stamps of accesses; what comes after is judged as before."""
    for _ in range(3):
        assert emulation().run("more_barriers_than_stamps", fixed=True) == (OK, "")
        assert emulation().run("through_global_memory", fixed=True) == (OK, "")
        assert emulation().run("through_global_memory", fixed=False)[0] == FAULT


def test_there_are_enough() -> None:
    """Names are unique, and so many that a missing file would be noticed."""
    names = [name for name, _ in scenarios()]
    assert len(set(names)) == len(names) >= 70

"""Variables that are read, and those that only look like it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tandem.config import variables
from tandem.contract.environment import KNOWN, look_alikes, unknown_variables


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TANDEM_BACKENDS", "TANDEM_BACKEND"),
        ("TANDEM_DEVICE", "TANDEM_BACKEND"),
        ("TANDEMBACKEND", "TANDEM_BACKEND"),
        ("Tandem_Backend", "TANDEM_BACKEND"),
        ("TANDEM_BAKCEND", "TANDEM_BACKEND"),
        ("TANDEM_REQUIRE_ACCELERATORS", "TANDEM_REQUIRE_ACCELERATOR"),
        ("tandem_allow_untested", "TANDEM_ALLOW_UNTESTED"),
        ("TANDEM_COMPOSITES", "TANDEM_COMPOSITE"),
        ("TANDEM_MODELPATH", "TANDEM_MODEL_PATH"),
        ("TANDEM_MODEL", "TANDEM_MODEL_PATH"),
        ("TANDEM_CHECKPOINT", "TANDEM_MODEL_PATH"),
    ],
)
def test_what_was_meant(name: str, meant: str) -> None:
    assert look_alikes({name: "1"}, variables()) == {name: meant}
    assert look_alikes({name: ""}, variables()) == {}


def test_what_is_read_or_nothing_like_it_is_left_alone() -> None:
    read = dict.fromkeys([*KNOWN, *variables()], "1")
    others = dict.fromkeys(("PATH", "HOME", "BACKEND", "TANDEM_ZZZ", "TORCH_DEVICE_BACKEND_AUTOLOAD"), "1")
    assert look_alikes(read | others, variables()) == {}
    assert unknown_variables(read | others, variables()) == ["TANDEM_ZZZ"]


def test_every_variable_that_the_tree_reads_is_known(repo_root: Path) -> None:
    """Text in quotes, and $NAME or ${NAME in scripts."""
    found: dict[str, str] = {}
    for folder in ("core", "backends", "ci", "tests/support", "setup.py"):
        root = repo_root / folder
        for file in [root] if root.is_file() else [f for f in root.rglob("*") if f.suffix in (".py", ".sh")]:
            for name in re.findall(r"[\"'{$](TANDEM_[A-Z_]*[A-Z])[\"':}]", file.read_text(encoding="utf-8")):
                found[name] = str(file)
    guesses = {"TANDEM_DEVICE", "TANDEM_DEVICES", "TANDEM_PLATFORM", "TANDEM_ACCELERATOR", "TANDEM_TARGET"}
    guesses |= {"TANDEM_MODEL", "TANDEM_MODEL_DIR", "TANDEM_MODEL_NAME", "TANDEM_CHECKPOINT", "TANDEM_WEIGHTS"}
    assert {"TANDEM_BACKEND", "TANDEM_PYTHON", "TANDEM_CONFORMANCE_BACKEND"} <= set(found)
    assert {name: file for name, file in found.items() if name not in {*KNOWN, *variables(), *guesses}} == {}

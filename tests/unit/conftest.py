"""Checkpoints and reference runs shared by the engine tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engines import Trace, World, jobs

from tandem.checkpoint.tiny import make_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint."""
    path = tmp_path_factory.mktemp("tiny")
    make_tiny(path, 0)
    return path


@pytest.fixture(scope="session")
def world(tiny: Path) -> World:
    """An engine with room for everything; a test leaves it idle."""
    return World(tiny)


@pytest.fixture(scope="session")
def alone(tiny: Path) -> list[Trace]:
    """Each of `jobs` run by itself, one step at a time, in an engine of its own."""
    own = World(tiny)
    return [own.run([job])[0] for job in jobs()]

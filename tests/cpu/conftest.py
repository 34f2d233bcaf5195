"""Fixtures shared by the tests of the CPU backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.checkpoint.tiny import make_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint."""
    path = tmp_path_factory.mktemp("tiny")
    make_tiny(path, 0)
    return path

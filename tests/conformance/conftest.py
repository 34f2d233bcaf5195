"""Fixtures of the conformance tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.checkpoint.tiny import make_tiny


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete tiny checkpoint with random weights."""
    path = tmp_path_factory.mktemp("tiny")
    make_tiny(path, seed=0)
    return path

"""Tests of the Ascend kernels and of their emulation; the library is built from what is in csrc/ascend."""

from __future__ import annotations

import pytest
from support import ascend_emulated

from tandem.contract.backend import Backend


@pytest.fixture(scope="session")
def ascend() -> Backend:
    """The emulated device."""
    return ascend_emulated.opened()

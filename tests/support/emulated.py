"""The emulated devices by name."""

from __future__ import annotations

from support import ascend_emulated

from tandem.contract.backend import Backend
from tandem.contract.registry import open_backend

BACKENDS = ("cuda", "ascend")


def opened(name: str) -> Backend:
    """Open one; the process emulates."""
    return ascend_emulated.opened() if name == "ascend" else open_backend(name)

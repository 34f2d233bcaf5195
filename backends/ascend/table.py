"""What this backend brings for each op."""

from __future__ import annotations

from tandem.accelerator.kernels import launchers
from tandem.backends.ascend import kernels
from tandem.contract.opspec import OpFunction


def implementations() -> dict[str, OpFunction]:
    """The launchers of every kernel file by op name; ops without one run as composites."""
    return launchers(kernels)

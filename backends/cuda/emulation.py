"""Emulation of the device on the host: chosen before the process starts, and never without being told.

With ``TANDEM_EMULATE=1`` in the environment Triton kernels run in Triton's interpreter on host memory, with the
corrections of `tandem.backends.cuda.interpreter`.  Triton decides for each kernel when its module is imported, so one
process either emulates or does not.
"""

from __future__ import annotations

import os
import sys

from tandem.accelerator.emulation import emulating
from tandem.contract.environment import EMULATE
from tandem.errors import BackendLoadError

LABEL = "emulated: Triton kernels in the interpreter, CUTLASS kernels by their host reference"


def prepare() -> None:
    """Make Triton interpret the kernels that are imported from now on, where this process emulates.

    Raises:
        BackendLoadError: Triton was imported before, as a compiler.
    """
    if not emulating():
        return
    if "triton.language" not in sys.modules:
        _import_interpreting()
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    if not isinstance(tl.sum, InterpretedFunction):
        raise BackendLoadError(
            "the device cannot be emulated",
            where=f"environment {EMULATE}",
            why="Triton was imported before the backend, as a compiler; it can be one thing only in a process",
            fix="start a new process that imports tandem before triton",
        )
    from tandem.backends.cuda import interpreter

    interpreter.install()


def _import_interpreting() -> None:
    """Import Triton with its own functions interpreted; it reads an environment variable while it is imported."""
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        import triton.language  # noqa: F401
        from triton import knobs

        knobs.runtime.interpret = True
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before

"""The emulated Ascend backend for tests: its library is built where that is out of date."""

from __future__ import annotations

import os
import shlex
import shutil
from functools import cache

import pytest

from tandem.contract.backend import Backend
from tandem.contract.environment import EMULATE
from tandem.contract.registry import open_backend
from tools import build_ascend


@cache
def build() -> None:
    """Build the library.  Skips the test where there is no C++ compiler."""
    compiler = shlex.split(os.environ.get("CXX", "g++"))[0]
    if shutil.which(compiler) is None:
        pytest.skip(f"the emulation is compiled with {compiler}, which is not here")
    build_ascend.build_emulated()


def opened() -> Backend:
    """The emulated backend; the library stays loaded, so kernels run in it whatever the environment says later."""
    build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(EMULATE, "1")
        patch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")  # beside a device it would be refused
        return open_backend("ascend")

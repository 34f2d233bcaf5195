"""Tests of kernels in the interpreter: a process emulates from its start or not at all."""

from __future__ import annotations

import os

import pytest

if os.environ.get("TANDEM_EMULATE") != "1":
    raise pytest.UsageError(
        "tests/emulated runs kernels in Triton's interpreter, and Triton reads how to run them when it is imported: "
        "set TANDEM_EMULATE=1 for the whole process, as ci/test.sh does"
    )

from tandem.backends.cuda.emulation import prepare

prepare()

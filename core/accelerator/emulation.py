"""Whether this process emulates a device on the host: chosen before it starts, and never without being told."""

from __future__ import annotations

import os
import threading

from tandem.contract.environment import EMULATE
from tandem.errors import BackendLoadError, ConfigError

# An emulator is one machine, whoever calls it: a kernel runs alone.  A fork waits for it, or its child would wait for
# what never ends there.
ONE_AT_A_TIME = threading.Lock()
os.register_at_fork(
    before=ONE_AT_A_TIME.acquire, after_in_parent=ONE_AT_A_TIME.release, after_in_child=ONE_AT_A_TIME.release
)


def emulating() -> bool:
    """Whether this process emulates the device.

    Raises:
        ConfigError: the variable is neither 0 nor 1.
    """
    value = os.environ.get(EMULATE, "")
    if value not in ("", "0", "1"):
        raise ConfigError(
            f"{EMULATE} is neither 0 nor 1",
            where=f"environment {EMULATE}",
            why=f"it is '{value}'",
            fix="set it to 1 to emulate the device, or unset it",
        )
    return value == "1"


def beside_a_device(found: str, hide: str) -> BackendLoadError:
    """The error of emulating a device beside a real one: its results would be taken for the device's.

    Args:
        found: what there is of the real one.
        hide: how to hide it from this process.
    """
    return BackendLoadError(
        "the device is not emulated beside a real one",
        where=f"environment {EMULATE}",
        why=f"{EMULATE}=1, and there are {found}",
        fix=f"unset {EMULATE} to run on the device, or hide it from this process with {hide}",
    )

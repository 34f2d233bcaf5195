"""Shared libraries of the vendor, asked for by name: only the dynamic loader knows where it would find them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

# What torch-npu is linked against, in an order in which the first that is missing tells most.
NEEDED = (
    "libascendcl.so",
    "libhccl.so",
    "libge_runner.so",
    "libgraph.so",
    "libacl_op_compiler.so",
    "libacl_tdt_channel.so",
)


def unloadable(names: Iterable[str] = NEEDED) -> dict[str, str]:
    """Libraries that cannot be loaded -> what the loader says.  Those that can be are loaded now."""
    found = {}
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError as error:
            found[name] = str(error)
    return found

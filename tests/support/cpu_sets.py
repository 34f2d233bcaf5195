"""The native CPU kernels of every instruction set that this machine has, and numbers of threads, for tests of bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

from tandem.backends.cpu import loading, native

SETS = loading.native_status().sets


@contextmanager
def using(name: str) -> Iterator[None]:
    """Launchers call the kernels of an instruction set."""
    with mock.patch.object(native, "library", lambda: native.library_for(name)):
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Kernels run with a number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

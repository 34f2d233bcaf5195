"""The one way in which kernels are launched, so that launches can be recorded instead of run.

A recorded launch has everything a compiler needs: the compile gates run the same launchers on arrays without memory
(device ``meta``) at official dimensions and compile what they would have launched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

Grid = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a Triton kernel.

    Args:
        kernel: the jitted function.
        grid: programs along each axis.
        args: positional arguments.
        meta: keyword arguments, compile-time constants and options (num_warps, num_stages) among them.
    """

    kernel: Any
    grid: Grid
    args: tuple[Any, ...]
    meta: dict[str, Any]


_recorders: list[list[Launch]] = []


def launch(kernel: Any, grid: Grid, *args: Any, **meta: Any) -> None:
    """Queue a kernel on the current stream; nothing where the grid is empty.

    Multiplications and additions are fused only where a kernel asks for it: what a compiler fuses changes bits.
    """
    meta.setdefault("enable_fp_fusion", False)
    if _recorders:
        _recorders[-1].append(Launch(kernel, grid, args, meta))
    elif all(grid):
        with device_of(*args):
            kernel[grid](*args, **meta)


def device_of(*args: Any) -> AbstractContextManager[Any]:
    """Makes the device of the first array on one the thread's current device, where kernels are launched.

    Calls come from more than one thread, and each begins with device 0.
    """
    found = next((a.device for a in args if isinstance(a, torch.Tensor) and a.device.type == "cuda"), None)
    return nullcontext() if found is None else torch.cuda.device(found)


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Record launches instead of running them."""
    found: list[Launch] = []
    _recorders.append(found)
    try:
        yield found
    finally:
        _recorders.pop()

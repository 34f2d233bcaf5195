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

from tandem.errors import LayoutError

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

    Raises:
        LayoutError: an array is not contiguous, which kernels take for granted, or not where the others are.
    """
    meta.setdefault("enable_fp_fusion", False)
    if _recorders:
        _recorders[-1].append(Launch(kernel, grid, args, meta))
    elif all(grid):
        require_dense(kernel.__name__.lstrip("_"), *(arg for arg in args if isinstance(arg, torch.Tensor)))
        with device_of(*args):
            kernel[grid](*args, **meta)


def require_dense(kernel: str, *arrays: torch.Tensor) -> None:
    """Refuse arrays that a kernel would read wrongly.

    Raises:
        LayoutError: one is not contiguous, or not where the others are.
    """
    if _recorders:  # arrays without memory are what it is for
        return
    places = {array.device for array in arrays}
    if len(places) > 1 or any(place.type == "meta" for place in places):
        raise _refused(kernel, arrays, f"they are on {' and '.join(sorted(map(str, places)))}, not on one device")
    for array in arrays:
        if not array.is_contiguous():
            raise _refused(kernel, (array,), f"its strides are {array.stride()}, and the kernel reads dense memory")


def _refused(kernel: str, arrays: tuple[torch.Tensor, ...], why: str) -> LayoutError:
    shapes = ", ".join(f"{str(array.dtype).removeprefix('torch.')} {list(array.shape)}" for array in arrays)
    return LayoutError(
        "a kernel got arrays that it does not take",
        where=f"kernel '{kernel}' on {shapes}",
        why=why,
        fix="pass contiguous arrays of the backend's device",
    )


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

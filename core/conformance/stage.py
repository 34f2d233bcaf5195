"""One case on one backend: its data, its arguments and its first run, shared by the checks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tandem.conformance.calls import run_call
from tandem.conformance.memory import written
from tandem.conformance.poison import PoisonMode
from tandem.contract.backend import Backend
from tandem.contract.cases import WeightInput, materialise, upload
from tandem.contract.opspec import Case, OpSpec
from tandem.contract.plan import Plan

FILL = 0xFF  # every byte: NaN in floats, the largest code in formats, -1 in integers


class Stage:
    """A case on a plan's backend.  Weights are packed once; everything else is made anew for each run."""

    def __init__(self, plan: Plan, spec: OpSpec, case: Case, quick: bool = False, seed: int = 0) -> None:
        self.plan, self.spec, self.case, self.quick = plan, spec, case, quick
        self.op, self.backend = spec.name, plan.backend
        self.data = case.build(seed)
        self._seed = seed

    @functools.cached_property
    def _packed(self) -> dict[str, Any]:
        # Packing takes ownership, so the weights that expectations come from are others.
        return {name: _pack(value, self.backend) for name, value in self.case.build(self._seed).items()}

    def arguments(self, poison: int = FILL, changed: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call arguments on the backend, with other data or arguments where given; their scratch holds ``poison``."""
        with fresh_memory(self.backend, poison):
            made: dict[str, Any] = materialise(self._packed | (changed or {}), self.backend, poison)
        return made

    def again(self, args: dict[str, Any], changed: dict[str, Any] | None = None) -> dict[str, Any]:
        """The same arguments but for those the op writes, which are made anew, and those that are changed."""
        anew = {name: self._packed[name] for name in written(self.op)} | (changed or {})
        made: dict[str, Any] = materialise(anew, self.backend, FILL)
        return args | made

    def run(self, args: dict[str, Any]) -> dict[str, Any]:
        """Outputs as `run_call` gives them."""
        return run_call(self.plan, self.op, args)

    @functools.cached_property
    def first(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments and outputs of the first run, with every open byte `FILL`."""
        args = self.arguments()
        with fresh_memory(self.backend, FILL):
            return args, self.run(args)


def _pack(value: Any, backend: Backend) -> Any:
    """The value with its weights packed."""
    if isinstance(value, WeightInput):
        return backend.pack_weight(value.kind, value.weight, value.shape)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: _pack(getattr(value, f.name), backend) for f in dataclasses.fields(value)}
        if any(isinstance(getattr(value, name), WeightInput) for name in parts):
            return type(value)(**parts)
    return value


@contextlib.contextmanager
def fresh_memory(backend: Backend, fill: int, sizes: Iterable[int] = ()) -> Iterator[None]:
    """Memory that is allocated holds the byte: certainly on the host, elsewhere as far as the allocator reuses it.

    Args:
        sizes: bytes of what will be allocated; where torch does not tell, such blocks are filled and given back.
    """
    if on_host(backend):
        with PoisonMode(fill):
            yield
        return
    blocks = [upload(torch.full((max(1, size),), fill, dtype=torch.uint8), backend) for size in sizes for _ in range(2)]
    backend.synchronize()
    del blocks
    yield


def on_host(backend: Backend) -> bool:
    """Whether the backend's device arrays are plain torch tensors in host memory."""
    return backend.device.type == "cpu" and type(backend.empty((1,), torch.float32)) is torch.Tensor

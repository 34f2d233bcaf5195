"""A backend that proves that a step can be captured.

It runs composites only and watches every torch operator.  Between bound ops, views are the only operators allowed;
inside them, nothing may read the device from the host, make an array from host data or take a shape from data.
It also records a step at two levels, the ops and the torch operators they are made of, and replays either on
whatever the same buffers hold by then, as a captured graph does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from support.runner import CompositeBackend
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tandem.backends.cpu.weights import MAPPED
from tandem.conformance.poison import ALLOCATIONS, fill
from tandem.contract.opspec import OpFunction
from tandem.contract.types import CanonicalWeight, PackedWeight, QTensor, WeightKind

POISON = 0xFF
FROM_HOST = {"aten::lift_fresh", "aten::lift", "aten::lift_fresh_copy"}
HOST_READS = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::allclose"}
DATA_SHAPES = {
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::bincount",
}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# Ways from a tensor to the host that never reach the dispatcher.
HOST_METHODS = {"tolist", "numpy", "__array__", "data_ptr", "cpu", "__dlpack__"}


class CaptureViolation(Exception):
    """A step did something that a graph capture forbids."""


@dataclasses.dataclass(frozen=True)
class Recorded:
    """One call and the tensors it returned."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


@dataclasses.dataclass
class Recording:
    """What a step called, outermost ops and torch operators."""

    ops: list[Recorded] = dataclasses.field(default_factory=list)
    operators: list[Recorded] = dataclasses.field(default_factory=list)

    def replay_ops(self) -> None:
        """Call the ops again, with the recorded arguments, into the recorded results."""
        for call in self.ops:
            _copy_into(call.result, call.function(*call.args, **call.kwargs))

    def replay_operators(self) -> None:
        """Call the torch operators again; views exist already, fresh memory is junk."""
        for call in self.operators:
            if call.function in ALLOCATIONS:
                fill(call.result, POISON)
            else:
                _copy_into(call.result, call.function(*call.args, **call.kwargs))


class CheckingBackend(CompositeBackend):
    """Composites on the host, weights and activations in canonical form, every op call known."""

    def __init__(self) -> None:
        super().__init__(use_native=False)
        self.running: list[str] = []
        self.recording: Recording | None = None

    def pack_weight(self, kind: WeightKind, weight: CanonicalWeight, shape: tuple[int, ...]) -> PackedWeight:
        scale = None if weight.scale is None else weight.scale.clone()
        kept = CanonicalWeight(weight.data.clone(), scale, weight.fmt)
        return PackedWeight(kind, weight.fmt, shape, MAPPED, kept, 0)

    def from_canonical(self, q: QTensor) -> QTensor:
        return q

    def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.running.append(op)
            try:
                result = function(*args, **kwargs)
            finally:
                self.running.pop()
            if self.recording is not None and not self.running:
                self.recording.ops.append(Recorded(op, function, args, kwargs, result))
            return result

        return run


@contextmanager
def watch(backend: CheckingBackend) -> Iterator[Recording]:
    """Check everything that runs inside, and record it.

    Raises:
        CaptureViolation: from the operator that a capture forbids.
    """
    backend.recording = Recording()
    try:
        with torch.no_grad(), _HostMethods(backend), _Operators(backend, backend.recording):
            yield backend.recording
    finally:
        backend.recording = None
        backend.running.clear()


class _HostMethods(TorchFunctionMode):
    """Catches what leaves torch without going through the dispatcher."""

    def __init__(self, backend: CheckingBackend) -> None:
        super().__init__()
        self._backend = backend

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in HOST_METHODS:
            raise CaptureViolation(f"host read by {name}() in {_place(self._backend)}")
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    """Judges, poisons and records each torch operator."""

    def __init__(self, backend: CheckingBackend, recording: Recording) -> None:
        super().__init__()
        self._backend, self._recording = backend, recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        self._judge(name, func, args, kwargs)
        result = func(*args, **kwargs)
        if func in ALLOCATIONS:
            fill(result, POISON)
        if not func.is_view:
            self._recording.operators.append(Recorded(name, func, args, kwargs, result))
        return result

    def _judge(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        place = _place(self._backend)
        if name in HOST_READS:
            raise CaptureViolation(f"host read by {name} in {place}")
        if name in FROM_HOST:
            raise CaptureViolation(f"tensor made from host data ({name}) in {place}")
        if name in DATA_SHAPES or (name in INDEXING and _by_mask(args[1])):
            raise CaptureViolation(f"shape depends on data ({name}) in {place}")
        by_data = name == "aten::repeat_interleave" and func._overloadname != "self_int"
        if by_data and kwargs.get("output_size") is None:
            raise CaptureViolation(f"shape depends on data ({name} without output_size) in {place}")
        if name in INDEXING and name != "aten::index":
            _distinct(args[0], args[1], place)
        if not self._backend.running and not func.is_view:
            raise CaptureViolation(f"torch operator {name} outside a bound op")


def _place(backend: CheckingBackend) -> str:
    return " > ".join(f"op {name}" for name in backend.running) or "model code"


def _by_mask(indices: Any) -> bool:
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)


def _distinct(target: torch.Tensor, indices: Any, place: str) -> None:
    """Two writes to one place land in any order on a device; only scratch, the last row, may get several."""
    rows = torch.stack(torch.broadcast_tensors(*indices)).flatten(1)
    last = target.shape[0] - 1
    kept = rows[:, (rows[0] != -1) & (rows[0] != last)]
    if torch.unique(kept, dim=1).shape[1] != kept.shape[1]:
        raise CaptureViolation(f"two writes to one place in {place}")


def _copy_into(old: Any, new: Any) -> None:
    """Write new values into recorded tensors, wherever they sit in a result."""
    if isinstance(old, torch.Tensor):
        if old.data_ptr() != new.data_ptr():
            old.copy_(new)
    elif isinstance(old, (tuple, list)):
        for a, b in zip(old, new, strict=True):
            _copy_into(a, b)
    elif dataclasses.is_dataclass(old):
        for field in dataclasses.fields(old):
            _copy_into(getattr(old, field.name), getattr(new, field.name))

"""The traffic that kernels state for the roofline table, against the bytes that they move in the interpreter.

A kernel states what comes from device memory: never less than the distinct bytes it touches, never more than all its
loads and stores together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from triton.runtime.interpreter import InterpreterBuilder

from tandem.backends.cuda.table import triton_ops
from tandem.contract.cases import materialise
from tandem.contract.opspec import OP_TABLE
from tandem.contract.registry import open_backend
from tools.kernels.roofline import planned

TRAFFIC = {op: stated for op, stated in planned()[0].items() if op in triton_ops()}
SLACK = 1.1  # what a kernel reads of indices beyond its statement
SMALL = 2048  # bytes of partial results, which are nothing at official shapes
UNUSED = 2.5  # of a case up to a half of rows, columns or slots is padding, which a statement by shapes does not know
# Stated by sectors of 32 bytes, of which a logit alone is an eighth; and for the most passes that a search can need.
AT_MOST = {"adjust_logits", "penalize_logits", "sample", "process_logits", "draft_sample", "spec_verify"}


@dataclass
class Moved:
    """Bytes of loads and stores: all, and distinct ones."""

    all: int = 0
    places: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def add(self, pointers: Any, mask: Any) -> None:
        size = pointers.get_element_ty().primitive_bitwidth // 8
        used = np.broadcast_to(mask.data, pointers.data.shape).astype(bool)
        addresses = np.unique(pointers.data[used].astype(np.int64))
        self.all += int(used.sum()) * size
        self.places.append((addresses[:, None] + np.arange(max(size, 1))).ravel())

    @property
    def distinct(self) -> int:
        return len(np.unique(np.concatenate(self.places))) if self.places else 0


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Moved, Moved]]:
    read, written = Moved(), Moved()
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def counting_load(self: Any, pointers: Any, mask: Any, *more: Any, **named: Any) -> Any:
        read.add(pointers, mask)
        return load(self, pointers, mask, *more, **named)

    def counting_store(self: Any, pointers: Any, value: Any, mask: Any, *more: Any, **named: Any) -> Any:
        written.add(pointers, mask)
        return store(self, pointers, value, mask, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_masked_load", counting_load)
        patch.setattr(InterpreterBuilder, "create_masked_store", counting_store)
        yield read, written


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(TRAFFIC))
def test_stated_traffic_is_what_the_kernel_moves(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_backend("cuda")
    function = triton_ops()[op]
    case = next((c for c in OP_TABLE[op].cases if c.name.endswith("-T17")), OP_TABLE[op].cases[0])
    arguments = materialise(case.build(0), backend, 0)
    stated = TRAFFIC[op](**arguments)
    with counted(monkeypatch) as moved:
        function(**arguments)
    for name, bytes_stated, found in zip(("read", "written"), stated, moved, strict=True):
        if (op, name) == ("engram_gather", "read"):
            continue  # the table lies on the host, and what comes over the bus is not stated
        assert found.distinct <= SLACK * bytes_stated + SMALL, f"{name}: {found.distinct} distinct bytes"
        if op not in AT_MOST:
            assert bytes_stated <= UNUSED * found.all + 64, f"{name}: {found.all} bytes in all, {bytes_stated} stated"

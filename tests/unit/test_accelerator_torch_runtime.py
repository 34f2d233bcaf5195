"""The runtime over torch's module of a device, with a module that writes down what it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from support.late_queue import LateQueue

from tandem.accelerator import torch_runtime
from tandem.accelerator.torch_runtime import TorchRuntime
from tandem.contract.capabilities import MemoryInfo

DEVICE = torch.device("cpu")


class Module:
    """What a vendor brings for torch, on the host."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.queue = LateQueue()

    def __getattr__(self, name: str) -> Any:
        """Functions that are only written down."""

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            return {"graph_pool_handle": "pool", "memory_reserved": 30, "memory_allocated": 10}.get(name, (5, 100))

        return call

    def default_stream(self, device: torch.device) -> Any:
        return self

    def Stream(self, device: torch.device) -> str:  # noqa: N802
        self.calls.append("Stream")
        return "own stream"

    def record_event(self) -> Any:
        return self.queue.mark()

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        assert stream is self
        yield

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        self.calls.append(f"on {device}")
        yield
        self.calls.append(f"off {device}")

    @contextmanager
    def graph(self, graph: Any, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        self.calls.append(f"capture in {pool} on {stream}, {capture_error_mode}")
        yield
        self.calls.append("captured")


class Graph:
    replays = 0

    def replay(self) -> None:
        Graph.replays += 1


class Runtime(TorchRuntime):
    backend, transport = "test", "none"

    def resident(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def facts(self) -> dict[str, str]:
        return {}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    monkeypatch.setattr(torch_runtime, "_pinned", lambda count: torch.empty(count, dtype=torch.uint8))
    monkeypatch.setattr(torch_runtime, "RING", 4096)
    return Module()


def test_streams_are_made_where_the_device_is_current(module: Module) -> None:
    Runtime(DEVICE, module, Graph)
    assert module.calls == ["init", "on cpu", "Stream", "off cpu"]


def test_a_call_is_captured_on_a_stream_of_its_own_and_replayed(module: Module) -> None:
    runtime = Runtime(DEVICE, module, Graph)
    module.calls.clear()
    captured = runtime.capture(lambda: module.calls.append("call"))
    again = runtime.capture(lambda: None)
    inside = "capture in pool on own stream, thread_local"
    assert module.calls[:6] == ["on cpu", "graph_pool_handle", inside, "call", "captured", "off cpu"]
    assert module.calls.count("graph_pool_handle") == 1, "graphs share one pool"
    module.calls.clear()
    captured.replay()
    again.replay()
    assert module.calls == ["on cpu", "off cpu"] * 2 and Graph.replays == 2


def test_copies_and_memory(module: Module) -> None:
    runtime = Runtime(DEVICE, module, Graph)
    held = runtime.from_host(np.arange(6, dtype=np.float32), None)
    assert runtime.to_host(held.to(torch.bfloat16)).result().dtype == np.float32
    assert runtime.to_host(held).result().tolist() == [0, 1, 2, 3, 4, 5]
    wide = torch.zeros(3, dtype=torch.float64)
    assert runtime.from_host(np.ones(2, np.float32), wide).tolist() == [1, 1], "another type goes through a copy"
    assert runtime.memory() == MemoryInfo(100, 5 + 20)
    runtime.synchronize()
    assert module.calls[-1] == "synchronize" and not runtime.emulated

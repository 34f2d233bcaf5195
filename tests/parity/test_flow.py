"""What a recording says about data: which output an input is, how close a decision was, how far a value sticks out."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from support.runner import CompositeBackend
from tandem_islands.backend import IslandsBackend

from tandem.checkpoint.tiny import make_tiny
from tandem.config import load_config
from tandem.contract.types import QFormat, QTensor
from tandem.parity.flow import Flow
from tandem.parity.margins import margin, outlier
from tandem.parity.record import record
from tandem.parity.records import View
from tandem.parity.replay import FREE, replay
from tandem.parity.trace import Trace
from tandem.parity.values import digest, leaves
from tandem.sampling.params import SamplingParams


def test_views_are_found_in_the_memory_they_lie_in() -> None:
    flow, y = Flow(), torch.arange(24.0)
    flow.made(3, "y", y, y, False)
    assert flow.find(y, y) == (3, "y", None)
    assert flow.find(y.view(2, 3, 4), y) == (3, "y", View(0, (2, 3, 4), (12, 4, 1)))
    assert flow.find(y[8:20:3], y) == (3, "y", View(8, (4,), (3,)))
    assert flow.find(y.view(4, 6)[:, 2], y) == (3, "y", View(2, (4,), (6,)))
    assert flow.find(y.clone(), y) is None
    assert flow.find(y.view(torch.int32), y) is None


def test_the_newest_writer_counts_and_lasts_where_it_is_state() -> None:
    flow, state, passing = Flow(), torch.zeros(4), torch.zeros(4)
    flow.made(1, "x", state, state, True)
    flow.made(2, "history", state, state, True)
    flow.made(3, "y", passing, passing, False)
    assert flow.find(state, state) == (2, "history", None)
    flow.end_step()
    assert flow.find(state, state) == (2, "history", None)
    assert flow.find(passing, passing) is None


def test_memory_of_an_output_is_not_given_to_another_tensor_in_its_step() -> None:
    flow = Flow()
    for number in range(50):
        y = torch.full((1000,), float(number))
        assert flow.find(y, y) is None
        flow.made(number, "y", y, y, False)
        del y


def test_a_quantised_activation_flows_as_a_whole() -> None:
    flow = Flow()
    q = QTensor(torch.zeros((2, 32), dtype=torch.uint8), torch.zeros((2, 1), dtype=torch.uint8), QFormat.MXFP8, (2, 32))
    flow.made(5, "xq", q, q, False)
    assert flow.find(q, q) == (5, "xq", None)
    assert flow.find(dataclasses.replace(q, data=q.data[1:], shape=(1, 32)), q) is None


def test_margins_by_hand() -> None:
    logits = torch.tensor([[1.0, 5.0, 4.0], [2.0, 0.0, 10.0]])
    assert margin("sample", {"logits": logits}, None) == pytest.approx((5 - 4) / 5)
    inf = float("inf")
    scores = torch.tensor([[8.0, 2.0, 6.0, -inf], [1.0, -inf, -inf, -inf]])
    assert margin("topk_index", {"scores": scores, "k": 2}, None) == pytest.approx((6 - 2) / 8)
    assert margin("topk_index", {"scores": scores[1:], "k": 2}, None) == inf
    assert margin("linear", {}, None) == inf
    # One channel; scores are sqrt(log(1 + e^x)), and the bias lifts the third expert over the second.
    x, gate = torch.ones(1, 1), torch.tensor([[2.0], [1.0], [0.0]])
    bias = torch.tensor([0.0, 0.0, 1.0])
    routing = {"x": x, "roles": torch.zeros(1, dtype=torch.int32), "bias": bias, "bias_vl": bias, "k": 2}
    first, second, third = (math.sqrt(math.log1p(math.exp(v))) for v in (2.0, 1.0, 0.0))
    assert third + 1 > first > second
    assert margin("moe_route", routing, gate) == pytest.approx((first - second) / (third + 1))


def test_outliers_by_hand() -> None:
    # rms of (3, 4, 0, 0) is 2.5
    assert outlier({"y": torch.tensor([3.0, -4.0, 0.0, 0.0]), "ids": torch.tensor([99])}) == pytest.approx(4 / 2.5)
    assert outlier({"y": torch.zeros(3)}) == 0.0


def test_a_backend_without_torch_memory_has_the_same_dataflow(tmp_path: Path) -> None:
    make_tiny(tmp_path / "model", 0)
    config = load_config(env={}, args={"model.path": str(tmp_path / "model")})
    params = SamplingParams(max_tokens=1, temperature=0.0)
    traces = []
    for name, backend in (("islands", IslandsBackend.open(0, {})), ("host", CompositeBackend(use_native=False))):
        record(config, [[7, 8, 9]], params, tmp_path / name, backend=backend)
        traces.append(Trace.open(tmp_path / name))
    there, here = traces
    # Block tables are written through a flat view: integers, which only their memory could tell from others.
    written = {item.id for item in here.records if item.op == "scatter_rows"}
    for one, other in zip(there.records, here.records, strict=True):
        tables = {path for path, (source, _) in other.sources.items() if path == "table" and source in written}
        assert one.sources == {path: source for path, source in other.sources.items() if path not in tables}
        assert one.views == {path: view for path, view in other.views.items() if path not in tables}
    counts = replay(here, IslandsBackend.open(0, {}), FREE, tmp_path / "x")
    assert counts["errors"] == 0 and counts["anchored"] == {"inputs": 0, "entries": 0}
    again = Trace.open(tmp_path / "x", here)
    for item in again.records:
        want, have = leaves(here.outputs(item)), leaves(again.outputs(item))
        assert {k: digest(v) for k, v in have.items()} == {k: digest(v) for k, v in want.items()}, item

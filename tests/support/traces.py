"""Small traces made by hand, call by call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandem.conformance.calls import run_call
from tandem.contract.cases import materialise
from tandem.parity.judge import host_plan
from tandem.parity.records import Call, Record
from tandem.parity.trace import Trace
from tandem.parity.writer import TraceWriter

MODEL = {"sha256": "m", "config": "c", "tokenizer": "t"}


def run(op: str, data: dict[str, Any]) -> Call:
    """A call as this machine's CPU backend answers it."""
    return Call(data, run_call(host_plan(), op, materialise(data, host_plan().backend, 0xFF)))


def write(path: Path, calls: Sequence[tuple[Record, Call]], **header: Any) -> Trace:
    """A trace of these calls, opened."""
    writer = TraceWriter(path, {"backend": "one", "model": MODEL} | header)
    for record, call in calls:
        writer.add(record, call)
    writer.close()
    return Trace.open(path)

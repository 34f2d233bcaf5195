"""Two traces side by side: which records belong together, and their values."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tandem.parity.feeds import fed, rebuild
from tandem.parity.judge import judge
from tandem.parity.measure import LeafError
from tandem.parity.records import Call, Record
from tandem.parity.trace import Trace

CALLS = 64  # values of as many records are kept in memory; a decision looks at a few before it


class Side:
    """One trace, with its records by number, its values, and the errors of its calls.

    Args:
        trace: an open trace.
        judged: errors by content, shared by traces that hold the same calls.
    Raises:
        TraceError: it holds no op calls but cache pages.
    """

    def __init__(self, trace: Trace, judged: dict[str, list[LeafError]] | None = None) -> None:
        trace.require_calls()
        self.trace = trace
        self.records: Mapping[int, Record] = {record.id: record for record in trace.records}
        self.judged = {} if judged is None else judged
        self.call = functools.lru_cache(maxsize=CALLS)(self._load)
        self.outputs = functools.lru_cache(maxsize=4 * CALLS)(self._outputs)

    @functools.cached_property
    def free(self) -> bool:
        """Whether calls were given what earlier calls of the same replay made."""
        return self.trace.header.get("mode") == "free" and self.trace.base is not None

    @functools.cached_property
    def made(self) -> dict[int, Record]:
        """Calls that gave outputs, by number."""
        return {record.id: record for record in self.trace.records if record.error is None}

    def _load(self, number: int) -> Call:
        record = self.records[number]
        if not self.free:
            return self.trace.load(record)
        inputs = rebuild(self.trace, record, lambda n: self.outputs(n) if n in self.made else None)
        return Call(inputs, self.outputs(number))

    def _outputs(self, number: int) -> dict[str, Any]:
        return self.trace.outputs(self.records[number])

    def find(self, number: int) -> tuple[Record, Call] | None:
        """A record and its values; None where it was not recorded, or made no outputs."""
        record = self.records.get(number)
        return None if record is None or record.error is not None else (record, self.call(number))

    def bits(self, record: Record) -> tuple[str, str]:
        """What stands for the bits of inputs and outputs of a call: equal texts, equal bits."""
        tree = self.trace.tree(record)
        inputs: list[Any] = [tree["inputs"]]
        base = self.trace.base
        if self.free and base is not None:
            here, there = fed(self.trace, record, self.made), fed(base, record, self.made)
            inputs += [] if here == there else here
        return json.dumps(inputs, sort_keys=True), json.dumps(tree["outputs"], sort_keys=True)

    def errors(self, record: Record) -> list[LeafError]:
        """Errors of a call against the truth for its own inputs."""
        key = record.op + "".join(self.bits(record))
        if key not in self.judged:
            self.judged[key] = judge(record.op, self.call(record.id))
        return self.judged[key]

    def before(self, record: Record) -> set[int]:
        """Numbers of the records that fed this one, directly."""
        feeding = {source for source, _ in record.sources.values()}
        for writers in self.trace.writers(record).values():
            feeding |= {int(number) for number in writers.unique() if number >= 0}
        return feeding | self.children.get(record.id, set())

    @functools.cached_property
    def children(self) -> dict[int, set[int]]:
        """Numbers of the calls that are parts of a call."""
        found: dict[int, set[int]] = {}
        for record in self.trace.records:
            if record.parent is not None:
                found.setdefault(record.parent, set()).add(record.id)
        return found

    def parts_decide(self, record: Record) -> bool:
        """Whether the decision of a call is that of a part of it, which was recorded too."""
        return any(self.records[part].op == "moe_route" for part in self.children.get(record.id, ()))

    def upstream(self, record: Record) -> set[int]:
        """Numbers of all recorded calls whose outputs reach this one."""
        seen: set[int] = set()
        open_ends = [record]
        while open_ends:
            fresh = self.before(open_ends.pop()) - seen
            seen |= fresh
            open_ends += [self.records[number] for number in fresh if number in self.records]
        return seen & self.records.keys()


def matched(one: Side, two: Side) -> Iterator[tuple[Record, Record]]:
    """Records that belong together: a replay by number, independent recordings by step, site, op and order there."""
    if two.trace.header.get("replay_of") == one.trace.digest:
        yield from ((record, two.records[record.id]) for record in one.trace.records if record.id in two.records)
        return
    places = dict(_places(two))
    for place, record in _places(one):
        if place in places:
            yield record, places[place]


def _places(side: Side) -> Iterator[tuple[tuple[Any, ...], Record]]:
    """Where a call stands in its run: ids count all calls, and backends differ in how many parts an op has."""
    seen: dict[tuple[Any, ...], int] = {}
    for record in side.trace.records:
        place = record.step, record.site, record.op, record.parent is None
        seen[place] = seen.get(place, -1) + 1
        yield (*place, seen[place]), record

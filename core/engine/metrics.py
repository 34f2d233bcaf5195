"""The figures of an engine as plain values, for logs, `--json` and servers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tandem.engine.assembly import Assembly
from tandem.engine.stats import StepStats


def metrics_of(parts: Assembly, stats: StepStats, waiting: int, in_flight: int) -> dict[str, Any]:
    """Everything that is counted.

    Args:
        parts: of the engine.
        stats: its totals.
        waiting: requests without a slot.
        in_flight: steps queued and not delivered.

    Returns:
        steps: `StepStats` by name.
        queue: numbers now: requests that wait for a slot or a grammar (waiting), that have a slot and wait for room
            (queued), that run (running), and steps in flight (in_flight).
        speculation: `SpeculationStats.to_dict`, the alarms low_acceptance and bad_calibration, and whether rows are
            scheduled by a cost curve; None without.
        prefix: `PrefixStats` by name, None without the cache.
        grammars: `GrammarStats` by name.
    """
    book, scheduler = parts.book, parts.scheduler
    speculation = None
    if book is not None:
        monitor = book.monitor
        speculation = monitor.stats.to_dict() | {
            "low_acceptance": monitor.low_acceptance,
            "bad_calibration": monitor.bad_calibration,
            "scheduled": book.budget.curve is not None,
        }
    return {
        "steps": asdict(stats),
        "queue": {
            "waiting": waiting,
            "queued": len(scheduler.waiting),
            "running": len(scheduler.running),
            "in_flight": in_flight,
        },
        "speculation": speculation,
        "prefix": None if parts.prefix is None else asdict(parts.prefix.stats()),
        "grammars": asdict(parts.compiler.stats()),
    }

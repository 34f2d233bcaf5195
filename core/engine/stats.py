"""What an engine counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepStats:
    """Totals since the engine was made; times in seconds."""

    steps: int = 0
    rows: int = 0
    tokens: int = 0
    preemptions: int = 0
    schedule_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0
    deliver_s: float = 0.0

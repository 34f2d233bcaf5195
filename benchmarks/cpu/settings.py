"""How much is measured; handed to the processes that measure as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of a run.

    Args:
        threads: of every engine.
        batches: requests that decode together.
        prompts: prompt lengths in tokens.
        contexts: tokens of context of the long-context part.
        steps: decode steps of a round.
        rounds: rounds after one that is not counted.
        budget_s: seconds after which no further round of a prompt length starts.
        peak: FLOP per second of the machine's fp32 products; 0 before it is known.
    """

    threads: int
    batches: tuple[int, ...] = (1, 8, 64)
    prompts: tuple[int, ...] = (16, 512, 4096, 32768)
    contexts: tuple[int, ...] = (1024, 8192, 65536, 262144)
    steps: int = 48
    rounds: int = 5
    budget_s: float = 90.0
    peak: float = 0.0

    def to_json(self) -> str:
        """As one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """What `to_json` wrote."""
        raw: dict[str, Any] = json.loads(text)
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()})


def quick(threads: int) -> Settings:
    """A run for trying: every part, small."""
    return Settings(
        threads, batches=(1, 8), prompts=(16, 512), contexts=(1024, 8192, 65536), steps=8, rounds=2, budget_s=10.0
    )

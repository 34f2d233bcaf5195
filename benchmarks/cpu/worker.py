"""Runs one stage of one size in this process: ``python -m benchmarks.cpu.worker STAGE SIZE SETTINGS``; JSON out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cpu import context, machine, memory, products, stages, weights
from benchmarks.cpu.settings import Settings

STAGES: dict[str, Callable[[Path, Settings], dict[str, Any]]] = {
    "info": stages.info,
    "memory": memory.memory,
    "decode": stages.decode,
    "prefill": stages.prefill,
    "ops": stages.ops,
    "beside": stages.beside,
    "context": context.context,
}
BARE: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "machine": lambda settings: {"machine": machine.measure(settings.threads, settings.rounds)},
    "products": products.products,
}


def main(stage: str, size: str, text: str) -> None:
    """Run it and print what it returns as the last line."""
    settings = Settings.from_json(text)
    found = BARE[stage](settings) if stage in BARE else STAGES[stage](weights.ensure(size), settings)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

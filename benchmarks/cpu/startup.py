"""Start-up in fresh processes: importing, ``tandem doctor``, and the first token of the shipped model."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from benchmarks.cpu.machine import summary

FIRST_TOKEN = """
from tandem import LLM, SamplingParams
llm = LLM(backend="cpu", show_progress=False)
next(iter(llm.stream("In the beginning", SamplingParams(max_tokens=4))))
"""
COMMANDS = {
    "interpreter": ["-c", "pass"],
    "import tandem": ["-c", "import tandem"],
    "tandem doctor": ["-m", "tandem.cli.main", "doctor"],
    "first token": ["-c", FIRST_TOKEN],
}


def startup(rounds: int) -> dict[str, Any]:
    """Seconds from the start of a process to its end, by command; one round before is not counted."""
    found = {}
    for name, words in COMMANDS.items():
        times = []
        for _ in range(rounds + 1):
            started = time.perf_counter()
            subprocess.run([sys.executable, *words], check=True, capture_output=True)
            times.append(time.perf_counter() - started)
        found[name] = summary(times[1:])
    return {"startup": found}

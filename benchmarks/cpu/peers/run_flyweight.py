"""flyweight on the GGUF files of `gguf_file`: one sequence at a time is all that it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import gguf
import gguf_file
import numpy as np
from common import Job, answer, measure, weights
from flyweight.deepseek4 import Deepseek4Runtime
from flyweight.v2 import V2Error, V2Model


class FlyweightEngine:
    """One sequence."""

    def __init__(self, model: Any, tokens: int) -> None:
        self._runtime = Deepseek4Runtime(model, tokens)
        self._next = 0

    def prefill(self, prompts: list[list[int]]) -> None:
        """All but the last token in one call, then that."""
        self._runtime.reset()
        self._runtime.prefill(prompts[0][:-1])
        self._next = int(np.argmax(self._runtime.forward(prompts[0][-1])))

    def step(self) -> None:
        """One token."""
        self._next = int(np.argmax(self._runtime.forward(self._next)))


def one(job: Job, variant: str) -> dict[str, Any]:
    """The row of one file, or the reason why there is none."""
    path = job.folder / f"mid-{variant}.gguf"
    if not path.is_file():
        return {"variant": variant, "error": "no file; the peer llama-cpp makes it"}
    sizes = weights((t.name, int(t.n_elements), int(t.n_bytes)) for t in gguf.GGUFReader(path).tensors)
    try:
        model = V2Model(str(path))
        found = measure(job, lambda count, tokens: FlyweightEngine(model, tokens), most=1)
    except V2Error as error:
        return {"variant": variant, "error": str(error)}
    return {"variant": variant} | sizes | found


def main() -> None:
    """Measure each file in a process of its own, since a crash ends one."""
    job = Job.from_argv()
    if len(sys.argv) > 2:
        answer([one(job, sys.argv[2])])
        return
    gguf_file.write(job.folder / "mid-bf16.gguf")
    rows = []
    for variant in ("bf16", "q8_0", "q4_0"):
        done = subprocess.run([sys.executable, __file__, sys.argv[1], variant], capture_output=True, text=True)
        if done.returncode:
            rows.append({"variant": variant, "error": f"it ended with status {done.returncode}"})
        else:
            rows += json.loads(done.stdout.strip().splitlines()[-1])
    answer(rows)


if __name__ == "__main__":
    main()

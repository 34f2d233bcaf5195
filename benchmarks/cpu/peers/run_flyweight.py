"""flyweight on the GGUF files of `gguf_file`: one sequence at a time is all that it runs."""

from __future__ import annotations

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


def main() -> None:
    """Measure the files that are there; one that it does not run is told with its reason."""
    job, rows = Job.from_argv(), []
    gguf_file.write(job.folder / "mid-bf16.gguf")
    for variant in ("bf16", "q8_0", "q4_0"):
        path = job.folder / f"mid-{variant}.gguf"
        if not path.is_file():
            rows.append({"variant": variant, "error": "no file; --peers llama-cpp makes it"})
            continue
        sizes = weights((t.name, int(t.n_elements), int(t.n_bytes)) for t in gguf.GGUFReader(path).tensors)
        try:
            model = V2Model(str(path))
            found = measure(job, lambda count, tokens, model=model: FlyweightEngine(model, tokens), most=1)
            rows.append({"variant": variant} | sizes | found)
        except V2Error as error:
            rows.append({"variant": variant, "error": str(error)})
    answer(rows)


if __name__ == "__main__":
    main()

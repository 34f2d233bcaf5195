"""llama.cpp on its nearest model: bf16, q8_0 and q4_0 as its own quantiser makes them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import gguf
import gguf_file
import llama_cpp as lib
import numpy as np
from common import Job, answer, measure, weights
from dims import MID

FTYPES = {"bf16": None, "q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0}


@lib.llama_log_callback
def _silent(level: int, text: bytes, data: object) -> None:
    """Says nothing."""


def model_file(folder: Path, variant: str, threads: int) -> Path:
    """The GGUF file of a variant, made if it is not there."""
    base = gguf_file.write(folder / "mid-bf16.gguf")
    ftype = FTYPES[variant]
    target = folder / f"mid-{variant}.gguf"
    if ftype is not None and not target.is_file():
        chosen = lib.llama_model_quantize_default_params()
        chosen.ftype, chosen.nthread, chosen.allow_requantize = ftype, threads, True
        if lib.llama_model_quantize(str(base).encode(), str(target).encode(), ctypes.byref(chosen)):
            raise RuntimeError(f"llama.cpp did not quantise to {variant}")
    return target


class LlamaEngine:
    """One context for some sequences."""

    def __init__(self, model: Any, count: int, tokens: int, threads: int) -> None:
        chosen = lib.llama_context_default_params()
        chosen.n_ctx, chosen.n_seq_max = count * max(1024, tokens), count
        chosen.n_batch = chosen.n_ubatch = 1024
        chosen.n_threads = chosen.n_threads_batch = threads
        self._context = lib.llama_init_from_model(model, chosen)
        if not self._context:
            raise RuntimeError("llama.cpp made no context")
        self._batch = lib.llama_batch_init(1024, 0, 1)
        self._next: list[int] = []
        self._lengths: list[int] = []

    def prefill(self, prompts: list[list[int]]) -> None:
        """All prompts in one batch."""
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        self._lengths = [len(prompt) for prompt in prompts]
        rows = [(token, place, number, place == len(prompt) - 1)
                for number, prompt in enumerate(prompts) for place, token in enumerate(prompt)]  # fmt: skip
        self._run(rows)

    def step(self) -> None:
        """One token of each sequence."""
        rows = [(token, self._lengths[number], number, True) for number, token in enumerate(self._next)]
        self._lengths = [length + 1 for length in self._lengths]
        self._run(rows)

    def _run(self, rows: list[tuple[int, int, int, bool]]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
            batch.seq_id[i][0] = sequence
        status = lib.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        wanted_rows = [i for i, row in enumerate(rows) if row[3]]
        self._next = [int(np.argmax(self._logits(i))) for i in wanted_rows]

    def _logits(self, row: int) -> Any:
        values = np.ctypeslib.as_array(lib.llama_get_logits_ith(self._context, row), (MID.vocab,))
        if not np.isfinite(values[:16]).all():
            raise RuntimeError("llama.cpp gave logits that are not finite")
        return values


def main() -> None:
    """Measure all variants."""
    job, rows = Job.from_argv(), []
    lib.llama_log_set(_silent, None)
    lib.llama_backend_init()
    for variant in FTYPES:
        path = model_file(job.folder, variant, job.threads)
        tensors = gguf.GGUFReader(path).tensors
        model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        if not model:
            raise RuntimeError(f"llama.cpp did not load {path}")

        def open_engine(count: int, tokens: int, model: Any = model) -> LlamaEngine:
            return LlamaEngine(model, count, tokens, job.threads)

        sizes = weights((t.name, int(t.n_elements), int(t.n_bytes)) for t in tensors)
        rows.append({"variant": variant} | sizes | measure(job, open_engine, most=8))
    answer(rows)


if __name__ == "__main__":
    main()

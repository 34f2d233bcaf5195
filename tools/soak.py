"""Run an engine hard for a long time: ``python -m tools.soak --minutes 60``.

Requests of many kinds arrive at random at an engine with small pools, drafts, a prefix cache and overlapped steps; some
are cancelled, some are of no use.  Every output must be the one that the request gave alone in another engine; between
rounds every slot and block must be back; the memory of the process must stay flat.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tqdm import tqdm

from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput
from tandem.errors import TandemError
from tandem.sampling.params import SamplingParams

TEXTS = (
    "In the beginning God created the heavens and the earth. Now the earth was formless and empty.",
    "And it happened, when the king heard it, that he tore his clothes, and covered himself with sackcloth.",
    "The words of the wise are as goads; and like nails well fastened are words from the masters.",
    "Who are you?",
)
PRESSED: Mapping[str, Any] = {
    "backend.name": "cpu",
    "model.max_model_len": 320,
    "cache.block_size": 32,
    "cache.num_blocks": 14,
    "scheduler.max_slots": 8,
    "scheduler.max_tokens_per_step": 96,
    "scheduler.max_chunk": 40,
    "scheduler.overlap": "on",
}
ROOMY: Mapping[str, Any] = {
    "backend.name": "cpu",
    "model.max_model_len": 320,
    "scheduler.max_slots": 8,
    "cache.prefix": "off",
}
WARM_UP = 0.25  # part of the time before memory counts
GROWTH = 0.02  # how much the memory may grow after that


@dataclass(frozen=True, slots=True)
class Job:
    """A request whose answer is known."""

    prompt: tuple[int, ...]
    params: SamplingParams
    answer: tuple[int, ...] = ()
    text: str = ""


@dataclass(slots=True)
class Counts:
    """What happened."""

    rounds: int = 0
    steps: int = 0
    finished: int = 0
    cancelled: int = 0
    refused: int = 0
    preemptions: int = 0
    prefix_hits: int = 0
    wrong: list[str] = field(default_factory=list)
    memory_mib: list[tuple[float, float]] = field(default_factory=list)  # seconds, MiB


def params_of(kind: int, seed: int) -> SamplingParams:
    """Parameters of some kinds; the seed decides lengths too."""
    base = SamplingParams(seed=seed, max_tokens=8 + seed % 40)
    kinds: Sequence[Mapping[str, Any]] = (
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 40},
        {"temperature": 0.9, "min_p": 0.05, "stop": (" the", "ing")},
        {"temperature": 0.8, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
        {"temperature": 1.0, "bad_words": ("and",), "min_tokens": 5},
        {"temperature": 1.0, "structured": {"kind": "regex", "schema": "[a-z]{2,8}( [a-z]{2,8}){1,4}"}},
        {"temperature": 0.0, "logprobs": 3, "logit_bias": {40: 2.0}},
    )
    return replace(base, **kinds[kind % len(kinds)])


def make_jobs(llm: LLM, count: int) -> list[Job]:
    """Jobs with the answers that they get alone."""
    generator = np.random.default_rng(1)
    jobs = []
    for number in tqdm(range(count), desc="answers of requests alone", disable=None):
        tokens = llm.tokenizer.encode(" ".join(generator.permutation(TEXTS)[: 1 + number % 4]))
        prompt = tuple(tokens[: int(generator.integers(1, min(len(tokens), 200)))])
        params = params_of(number, number)
        output = llm.generate([list(prompt)], params)[0]
        if output.error is not None:
            raise output.error
        jobs.append(Job(prompt, params, output.token_ids, output.text))
    return jobs


class Soak:
    """One engine under load.

    Args:
        llm: the engine under test.
        jobs: what may be asked of it.
        seed: of arrivals and cancellations.
    """

    def __init__(self, llm: LLM, jobs: Sequence[Job], seed: int) -> None:
        self.llm, self.jobs, self.counts = llm, jobs, Counts()
        self._generator = np.random.default_rng(seed)
        self._running: dict[int, Job] = {}

    def round(self, arrivals: int) -> None:
        """Let requests come and go until none is left, and check that all is back."""
        engine = self.llm.engine
        while arrivals or not engine.idle:
            while arrivals and self._generator.random() < 0.4:
                arrivals -= 1
                self._arrive()
            if self._running and self._generator.random() < 0.02:
                self._cancel()
            for piece in engine.step():
                if piece.output is not None:
                    self._finish(piece.output)
            self.counts.steps += 1
        self.counts.rounds += 1
        self._check_clean()

    def _arrive(self) -> None:
        if self._generator.random() < 0.05:
            self._refuse()
            return
        job = self.jobs[int(self._generator.integers(len(self.jobs)))]
        self._running[self.llm.submit(list(job.prompt), job.params)] = job

    def _refuse(self) -> None:
        """Something that cannot be served: refused at once, or ended with an error."""
        bad: Sequence[tuple[list[int], Mapping[str, Any]]] = (
            ([10**6], {}),
            ([1] * 400, {}),
            ([1], {"structured": {"kind": "regex", "schema": "(" * 5}}),
            ([1], {"structured": {"kind": "json", "schema": {"type": "nothing"}}}),
        )
        prompt, more = bad[int(self._generator.integers(len(bad)))]
        try:
            request = self.llm.submit(prompt, SamplingParams(max_tokens=4, **more))
        except TandemError:
            self.counts.refused += 1
            return
        self._running[request] = Job((), SamplingParams())

    def _cancel(self) -> None:
        request = list(self._running)[int(self._generator.integers(len(self._running)))]
        output = self.llm.engine.cancel(request)
        if output is None:  # it has ended, and its output is on its way
            return
        job = self._running.pop(request)
        self.counts.cancelled += 1
        if job.prompt and output.token_ids != job.answer[: len(output.token_ids)]:
            self._wrong(job, output)

    def _finish(self, output: RequestOutput) -> None:
        job = self._running.pop(output.request_id)
        if not job.prompt:
            self.counts.refused += 1
            if output.error is None:
                self._wrong(job, output)
            return
        self.counts.finished += 1
        self.counts.preemptions += output.preemptions
        if (output.token_ids, output.text) != (job.answer, job.text):
            self._wrong(job, output)

    def _wrong(self, job: Job, output: RequestOutput) -> None:
        self.counts.wrong.append(f"{job.params}: {output.token_ids}, expected {job.answer}; {output.error}")

    def _check_clean(self) -> None:
        parts = self.llm._assembly
        slots = parts.table.max_slots - parts.table.num_free
        blocks = sum(pool.num_blocks - pool.num_available for pool in parts.pools)
        if slots or blocks or self._running:
            left = f"{slots} slots, {blocks} blocks and {len(self._running)} requests"
            self.counts.wrong.append(f"after a round {left} were left")
        if parts.prefix is not None:
            parts.prefix.check()
            self.counts.prefix_hits = parts.prefix.stats().hits


def memory_mib() -> float:
    """Resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def growth(samples: Sequence[tuple[float, float]], seconds: float) -> float:
    """How much memory grew after the warm-up: the last quarter's median over the first's, less 1."""
    warm = [mib for at, mib in samples if at >= WARM_UP * seconds]
    if len(warm) < 8:
        return 0.0
    quarter = len(warm) // 4
    return statistics.median(warm[-quarter:]) / statistics.median(warm[:quarter]) - 1


def run(minutes: float, jobs: int, arrivals: int, seed: int) -> dict[str, Any]:
    """Soak for some minutes; returns what happened."""
    reference = LLM(options=dict(ROOMY), show_progress=False)
    known = make_jobs(reference, jobs)
    reference.close()
    llm = LLM(options=dict(PRESSED), show_progress=False)
    soak, started, seconds = Soak(llm, known, seed), time.monotonic(), minutes * 60
    with tqdm(total=round(seconds), desc="soak", unit="s", disable=None) as bar:
        while (now := time.monotonic() - started) < seconds and not soak.counts.wrong:
            soak.round(arrivals)
            soak.counts.memory_mib.append((now, memory_mib()))
            bar.update(round(time.monotonic() - started) - bar.n)
            bar.set_postfix(finished=soak.counts.finished, mib=round(soak.counts.memory_mib[-1][1]))
    llm.close()
    counts = soak.counts
    return {
        "minutes": (time.monotonic() - started) / 60,
        **{name: getattr(counts, name) for name in Counts.__slots__ if name != "memory_mib"},
        "memory_mib": [round(mib, 1) for _, mib in counts.memory_mib[:: max(1, len(counts.memory_mib) // 50)]],
        "memory_growth": growth(counts.memory_mib, seconds),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def failures(result: Mapping[str, Any]) -> list[str]:
    """What of a run was not as it must be."""
    found = list(result["wrong"])
    if result["memory_growth"] > GROWTH:
        found.append(f"memory grew by {result['memory_growth']:.1%} after the warm-up")
    kinds = ("finished", "cancelled", "refused", "preemptions")
    found += [f"{name}: none, so nothing is shown of them; run longer" for name in kinds if not result[name]]
    return found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Run an engine hard for a long time.")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (%(default)s)")
    parser.add_argument("--jobs", type=int, default=64, help="different requests (%(default)s)")
    parser.add_argument("--arrivals", type=int, default=60, help="requests of a round (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and cancellations (%(default)s)")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    arguments = parser.parse_args()
    result = run(arguments.minutes, arguments.jobs, arguments.arrivals, arguments.seed)
    found = failures(result)
    if arguments.json:
        print(json.dumps(result | {"failures": found}))
    else:
        for name in ("minutes", "rounds", "steps", "finished", "cancelled", "refused", "preemptions", "prefix_hits"):
            print(f"{name:12} {result[name]:>10.1f}" if name == "minutes" else f"{name:12} {result[name]:>10}")
        peak, more = result["peak_mib"], result["memory_growth"]
        print(f"{'memory':12} {peak:>10.0f} MiB at most, {more:+.2%} after the warm-up")
        print("\n".join(found) if found else "all answers right, nothing left behind")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Engines of a tiny model on the backend under test, and what their results are compared with."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tandem.checkpoint.tiny import make_tiny
from tandem.config import load_config
from tandem.conformance.compare import Mismatch
from tandem.contract.backend import Backend
from tandem.contract.types import KVCache, Rows
from tandem.engine.assembly import assemble
from tandem.engine.engine import Engine
from tandem.engine.outputs import RequestOutput, StreamPiece
from tandem.engine.requests import Status
from tandem.model.registry import Model
from tandem.model.step import StepInput
from tandem.sampling.params import SamplingParams
from tandem.speculation.stats import SpeculationStats

Tensor = torch.Tensor

# Every kind of layer once, and few rounds of what only repeats: ops are judged by their own cases.
MODEL: Mapping[str, Any] = {
    "text_config": {
        "num_hidden_layers": 4,
        "compress_ratios": [0, 2, 1, 1, 0, 0],
        "kv_source_layer_ids": [1, 2],
        "index_source_layer_ids": [1, 2, 3],
        "candidate_source_layer_id": 2,
        "engram_layer_ids": [1],
        "dspark_target_layer_ids": [1, 2, 3],
        "hc_sinkhorn_iters": 3,
        "n_routed_experts": 4,
    }
}
ROOMY: Mapping[str, Any] = {
    "model.max_model_len": 128,
    "backend.name": "cpu",  # not opened: engines get a backend that is open
    "cache.block_size": 16,
    "cache.window_block": 8,
    "scheduler.max_slots": 4,
    "scheduler.max_tokens_per_step": 64,
    "scheduler.max_chunk": 32,
    "speculation.draft_tokens": 0,
    "cache.prefix": "off",
}
# Where rows may depend on the batch, a greedy token may differ if the two best logprobs were as close as this.
TIE = 0.05


@dataclass(frozen=True)
class Job:
    """A request: token ids, parameters, and the step before which it arrives."""

    prompt: tuple[int, ...]
    params: SamplingParams
    arrival: int = 0


class Driver:
    """An engine that is stepped by hand.

    Args:
        backend: an open backend; it stays open.
        path: checkpoint directory.
        options: engine options that differ from `ROOMY`.

    Attributes:
        poisons: whether memory that nobody holds is filled with NaN after each step.
    """

    def __init__(self, backend: Backend, path: Path, options: Mapping[str, Any]) -> None:
        self.poisons = False
        config = load_config(env={}, args={**ROOMY, **options, "model.path": str(path)})
        self.parts = assemble(config, backend, show_progress=False)
        self.engine = Engine(self.parts)
        self.added: dict[int, Job] = {}
        self.outputs: dict[int, RequestOutput] = {}
        self.least_free = self.parts.pools.main.num_blocks

    def add(self, job: Job) -> int:
        """Queue a job; returns its request id."""
        request = self.engine.add_request(job.prompt, job.params)
        self.added[request] = job
        return request

    def drawn(self, request: int) -> int:
        """Tokens that a running request has so far."""
        state = self.engine.export_request(request, with_caches=False)
        return len(state.tokens) - state.prompt_len

    def step(self) -> list[StreamPiece]:
        """Run one step and keep the outputs of requests that ended."""
        pieces = self.engine.step()
        self.least_free = min(self.least_free, self.parts.pools.main.num_available)
        self.outputs |= {piece.request_id: piece.output for piece in pieces if piece.output is not None}
        if self.poisons:
            self._poison()
        return pieces

    def finish(self) -> None:
        """Step until nothing is left; everything taken has then been given back."""
        while not self.engine.idle:
            self.step()
        self.check_clean()

    def run(self, jobs: Sequence[Job]) -> list[RequestOutput]:
        """Run jobs to their end; outputs in the order of the jobs."""
        ids: dict[int, int] = {}
        now = 0
        while len(ids) < len(jobs) or not self.engine.idle:
            for place, job in enumerate(jobs):
                if place not in ids and job.arrival <= now:
                    ids[place] = self.add(job)
            self.step()
            now += 1
        self.check_clean()
        return [self.outputs.pop(ids[place]) for place in range(len(jobs))]

    def check_clean(self) -> None:
        """Raise Mismatch unless every block and slot is free and nothing is queued."""
        for name, pool in zip(("main", "window"), self.parts.pools, strict=True):
            held = pool.num_blocks - pool.num_available
            expect(held == 0, f"{held} {name} blocks were not freed")
        table = self.parts.table
        expect(table.num_free == table.max_slots, f"{table.max_slots - table.num_free} slots were not freed")
        expect(self.parts.scheduler.idle and not self.parts.scheduler.in_flight, "the scheduler is not idle")

    @property
    def drafts(self) -> SpeculationStats:
        """What became of drafts so far."""
        book = self.parts.book
        return SpeculationStats(0) if book is None else book.stats

    def close(self) -> None:
        """End the engine's threads; the backend stays open."""
        for lane in (self.parts.runner.lane, self.parts.text_lane):
            lane.close()

    def _poison(self) -> None:
        """Fill blocks without an owner and the state of free slots: bytes 0xFF, NaN in every format, and -1."""
        backend, caches, table = self.parts.plan.backend, self.parts.model.caches, self.parts.table
        for pool, kinds in zip(self.parts.pools, ((caches.main, caches.index), (caches.window,)), strict=True):
            blocks = np.flatnonzero(pool.ref_counts == 0).astype(np.int32)
            for cache in [cache for by_layer in kinds for cache in by_layer.values()]:
                size = cache.layout.block_entries * cache.layout.entry_bytes
                backend.kv_import(cache, blocks, np.full((len(blocks), size), 0xFF, dtype=np.uint8))
        free = np.flatnonzero(table.status == Status.FREE).astype(np.int32)
        write = self.parts.plan.bind("scatter_rows", "conformance")
        for array in (*caches.compressor.values(), *(() if caches.history is None else (caches.history,))):
            kind, junk = (np.float32, np.nan) if array.is_floating_point() else (np.int32, -1)
            values = np.full((len(free), *array.shape[1:]), junk, dtype=kind)
            write(array, backend.from_host(free), backend.from_host(values))

    def paged(self) -> dict[str, KVCache]:
        """Every paged cache by name."""
        caches = self.parts.model.caches
        groups = (("main", caches.main), ("index", caches.index), ("window", caches.window))
        return {f"{kind}.{layer}": cache for kind, group in groups for layer, cache in group.items()}

    def memory(self) -> dict[str, npt.NDArray[Any]]:
        """Canonical bytes of every cache block, and every state array without its scratch row, on the host."""
        backend, caches = self.parts.plan.backend, self.parts.model.caches
        found = {
            name: backend.kv_export(cache, np.arange(cache.num_blocks, dtype=np.int32))
            for name, cache in self.paged().items()
        }
        states = {f"compressor.{layer}": array for layer, array in caches.compressor.items()}
        if caches.history is not None:
            states["ngram"] = caches.history
        return found | {name: backend.to_host(array).result()[:-1].copy() for name, array in states.items()}


class OtherModel:
    """Another model's work and memory, for checks that change a part of it.

    Args:
        model: the model that does the work.
    """

    def __init__(self, model: Model) -> None:
        self.caches, self.packed_bytes, self.drafts = model.caches, model.packed_bytes, model.drafts
        self._model = model

    def forward(self, step: StepInput) -> Tensor:
        """As the model."""
        return self._model.forward(step)

    def logits(self, hidden: Tensor, index: Tensor) -> Tensor:
        """As the model."""
        return self._model.logits(hidden, index)

    def draw_tokens(self, hidden: Tensor, index: Tensor, *numbers: Any) -> Tensor:
        """As the model."""
        return self._model.draw_tokens(hidden, index, *numbers)

    def draft_block(self, *arrays: Tensor) -> tuple[Tensor, Tensor]:
        """As the model."""
        return self._model.draft_block(*arrays)

    def draft_head(self, base: Tensor, hidden: Tensor, previous: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """As the model."""
        return self._model.draft_head(base, hidden, previous, i)

    def remember(self, rows: Rows) -> None:
        """As the model."""
        self._model.remember(rows)


class EngineHarness:
    """What the checks of the engine suite work with.  Use it in a ``with`` statement: it makes a checkpoint.

    Args:
        backend: an open backend; it stays open.
        reopen: opens another instance of the same backend, which its user closes; without it closing and opening
            again are not checked.
    """

    def __init__(self, backend: Backend, reopen: Callable[[], Backend] | None = None) -> None:
        self.backend, self.reopen = backend, reopen
        self.exact = backend.caps.batch_invariant
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-engine-suite-")
        self._path = Path(self._folder.name)
        self._roomy: Driver | None = None
        self._alone: list[RequestOutput] = []
        self.known: dict[str, list[RequestOutput]] = {}  # outputs that several checks compare with

    def __enter__(self) -> EngineHarness:
        config = make_tiny(self._path, 0, MODEL)
        self.vocabulary, self.hidden, self.eos = config.text.vocab_size, config.text.hidden_size, config.eos_token_id
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def driver(self, backend: Backend | None = None, **options: Any) -> Driver:
        """A new engine; ``section__field=value`` differs from `ROOMY`."""
        named = {name.replace("__", "."): value for name, value in options.items()}
        return Driver(backend or self.backend, self._path, named)

    @property
    def roomy(self) -> Driver:
        """An engine with room for everything; a check leaves it idle."""
        if self._roomy is None:
            self._roomy = self.driver()
        return self._roomy

    @property
    def alone(self) -> list[RequestOutput]:
        """Each of `jobs` run by itself."""
        if not self._alone:
            self._alone = [self.roomy.run([job])[0] for job in jobs()]
        return self._alone

    def same(self, label: str, got: Sequence[RequestOutput], want: Sequence[RequestOutput]) -> None:
        """Raise Mismatch unless the outputs agree; see `agree`."""
        expect(len(got) == len(want), f"{label}: {len(got)} outputs, want {len(want)}")
        for place, (one, other) in enumerate(zip(got, want, strict=True)):
            self.agree(f"{label}, request {place}", one, other)

    def agree(self, label: str, got: RequestOutput, want: RequestOutput) -> None:
        """Raise Mismatch unless both ended alike with the same tokens.

        Where the backend does not claim batch invariance only greedy requests are compared, up to the first near tie.
        """
        ends = [(output.finish_reason, output.stop_reason, output.error is None) for output in (got, want)]
        if self.exact:
            expect(ends[0] == ends[1], f"{label}: ended with {ends[0]}, want {ends[1]}")
            expect(got.token_ids == want.token_ids, f"{label}: {_first(got.token_ids, want.token_ids)}")
            expect(got.text == want.text, f"{label}: text {got.text!r}, want {want.text!r}")
            expect(got.logprobs == want.logprobs, f"{label}: the same tokens have other logprobs")
            return
        for place, entry in enumerate(want.logprobs or ()):
            if len(entry.top) > 1 and place < len(got.token_ids) and got.token_ids[place] != want.token_ids[place]:
                first, second = list(entry.top.values())[:2]
                expect(first - second < TIE, f"{label}: {_first(got.token_ids, want.token_ids)}, and no near tie")
                return


Check = Callable[[EngineHarness], None]


def digest(outputs: Sequence[RequestOutput]) -> str:
    """SHA-256 over the tokens, texts, ends and logprobs of requests, to the last bit."""
    told = [(o.token_ids, o.text, o.finish_reason, o.stop_reason, repr(o.logprobs)) for o in outputs]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def expect(holds: bool, text: str) -> None:
    """Raise Mismatch with ``text`` unless ``holds``."""
    if not holds:
        raise Mismatch(text)


def _first(got: Sequence[int], want: Sequence[int]) -> str:
    """Where two lists of tokens part."""
    pairs = enumerate(zip(got, want, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(got), len(want)))
    ends = ["end" if place >= len(side) else str(side[place]) for side in (got, want)]
    return f"output token {place} is {ends[0]}, want {ends[1]}"


def tokens(seed: int, count: int) -> tuple[int, ...]:
    """Ordinary token ids of the tiny tokenizer."""
    return tuple(np.random.default_rng(seed).integers(3, 470, count).tolist())


def greedy(count: int, **changes: Any) -> SamplingParams:
    """Parameters that draw ``count`` most likely tokens, with the two best logprobs of each."""
    return replace(SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, logprobs=2), **changes)


def jobs() -> list[Job]:
    """Five requests of different lengths and ways to draw; none ends before its max_tokens."""
    fixed: dict[str, Any] = {"ignore_eos": True}
    return [
        Job(tokens(1, 19), greedy(9)),
        Job(tokens(2, 3), SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=10, **fixed)),
        Job(tokens(3, 37), greedy(5)),
        Job(tokens(4, 1), SamplingParams(temperature=1.3, top_k=20, seed=2**63 + 9, max_tokens=10, **fixed)),
        Job(tokens(5, 9), greedy(8, min_tokens=3, logit_bias={40: 4.0, 41: float("-inf"), 50: -1.5})),
    ]

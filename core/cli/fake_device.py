"""An engine whose device does nothing and makes tokens up: what is left of a step is what the host does."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from tandem.checkpoint.reader import Checkpoint
from tandem.checkpoint.shipped import shipped_model
from tandem.config import load_config
from tandem.contract.host_memory import HostArray
from tandem.contract.plan import Plan
from tandem.contract.registry import open_backend
from tandem.contract.types import ShardSpec
from tandem.engine.assembly import Assembly, connect
from tandem.engine.draws import Draws
from tandem.engine.engine import Engine
from tandem.engine.plan import StepPlan
from tandem.engine.runner import Forwarded, ModelRunner, Queued
from tandem.engine.sizes import size_engine
from tandem.engine.step import HostStep
from tandem.model.caches import ModelCaches
from tandem.model.registry import Model
from tandem.sampling.sampler import Drawn
from tandem.tokenizer.tokenizer import Tokenizer

Result = TypeVar("Result")
Array = npt.NDArray[Any]
FIRST_TOKEN = 8  # ids below it are control tokens
_NOTHING = torch.empty(0)


class HeldLane:
    """Keeps calls until `run`, so that they can be timed apart."""

    def __init__(self) -> None:
        self._held: deque[Callable[[], None]] = deque()

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """See `Lane`."""
        future: Future[Result] = Future()
        self._held.append(lambda: future.set_result(call()))
        return future

    def run(self) -> None:
        """Make the calls."""
        while self._held:
            self._held.popleft()()

    def close(self) -> None:
        """See `Lane`."""
        self.run()


class Clock:
    """CPU seconds of this thread by name, of calls that do not contain each other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def take(self) -> Mapping[str, float]:
        """What has been measured since the last call."""
        seconds, self.seconds = self.seconds, {}
        return seconds

    def timed(self, name: str, call: Callable[..., Result]) -> Callable[..., Result]:
        """The same call, measured."""

        def measured(*args: Any, **options: Any) -> Result:
            started = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.thread_time() - started

        return measured


class FakeRunner(ModelRunner):
    """A runner that prepares steps and draws as any other, and puts nothing on the device.

    Args:
        parts: of the engine.
        vocab: ids of the vocabulary.
        seed: of the tokens that it makes up.
    """

    def __init__(self, parts: Assembly, vocab: int, seed: int) -> None:
        super().__init__(parts.model, parts.plan, parts.builder, parts.table, vocab, parts.book)
        self._random, self._vocab, self._requests = np.random.default_rng(seed), vocab, parts.table

    def _forward(self, plan: StepPlan, host: HostStep) -> Forwarded:
        """Every speculative entry gets all rows it can use."""
        counts = None
        if plan.speculative and self.builder.drafts is not None:
            slots = plan.slots[: plan.speculative]
            room = self._requests.limit[slots] - self._requests.num_tokens[slots]
            counts = HostArray(np.clip(room, 1, 1 + self.builder.drafts.count).astype(np.int32))
        return Forwarded(_NOTHING, False, counts, 0.0)

    def _draw(self, forwarded: Forwarded, draws: Draws | None, prompts: Any) -> Queued:
        if draws is None:
            return Queued(None, None, None, None, [], 0.0)
        tokens = self._made_up(len(draws.rows))
        logprobs = HostArray(np.zeros(len(tokens), dtype=np.float32))
        drawn = Drawn(_NOTHING, _NOTHING, HostArray(tokens), logprobs, logprobs)
        emitted = HostArray(self._random.integers(1, draws.counts + 1, dtype=np.int32))
        if self.builder.drafts is None:
            return Queued(drawn, emitted, None, None, [], 0.0)
        shape = (len(draws.slots), self.builder.drafts.count)
        drafts, rates = self._made_up(shape), np.full(shape, 0.5, dtype=np.float32)
        return Queued(drawn, emitted, HostArray(drafts), HostArray(rates), [], 0.0)

    def _made_up(self, shape: int | tuple[int, ...]) -> Array:
        return self._random.integers(FIRST_TOKEN, self._vocab, shape, dtype=np.int32)


class _NoModel:
    """Caches without memory."""

    def __init__(self, caches: ModelCaches) -> None:
        self.caches = caches


def fake_engine(options: Mapping[str, Any], seed: int = 0) -> tuple[Engine, Assembly, HeldLane]:
    """An engine for the configuration and tokenizer of the model that comes with Tandem, without the model.

    It works as with overlap: a step is scheduled and prepared, then the one before is delivered.

    Args:
        options: as `load_config`'s arguments; the default is the backend ``cpu``.
        seed: of the tokens.
    """
    directory = shipped_model()
    config = load_config(env={}, args={"backend.name": "cpu", **options})
    checkpoint = Checkpoint.open(directory)
    tokenizer = Tokenizer.load(directory)
    sizes = size_engine(config, checkpoint.config.text)
    plan = Plan(open_backend(config.backend.name), ShardSpec())
    model = cast(Model, _NoModel(ModelCaches(sizes.spec)))
    parts = connect(config, checkpoint, tokenizer, plan, model, sizes)
    lane = HeldLane()
    parts.text_lane, parts.overlap = lane, True
    parts.runner = FakeRunner(parts, parts.vocab_size, seed)
    return Engine(parts), parts, lane

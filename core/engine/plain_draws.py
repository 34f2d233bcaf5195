"""Draws without rules, one token a request: what the device needs in one copy, and calls that may be captured."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from tandem.contract.backend import HostFuture
from tandem.contract.host_memory import HostArray
from tandem.contract.plan import Plan
from tandem.engine.captures import Captures
from tandem.engine.draws import Draws
from tandem.engine.plan import Int32
from tandem.engine.step import StepBuilder
from tandem.engine.step_rows import aligned
from tandem.model.registry import Model
from tandem.sampling.sampler import Drawn, Numbers, Sampler, SentNumbers

Tensor = torch.Tensor
_INTS = ("rows", "slots", "base", "top_k")
_FLOATS = ("temperature", "top_p", "min_p")
_LONGS = ("seed", "position")
_WORDS = len(_INTS) + len(_FLOATS) + 2 * len(_LONGS)


class _Kind(NamedTuple):
    """How many rows draw, and the hints for the ops that draw them."""

    rows: int
    filtered: bool
    greedy: bool


class PlainDraws:
    """Draws for steps whose `Draws.plain` says that they can be drawn here.

    Args:
        plan: binds the ops.
        builder: owns the arrays by slot.
        sampler: draws.
        slots: most requests of a step.
    """

    def __init__(self, plan: Plan, builder: StepBuilder, sampler: Sampler, slots: int) -> None:
        backend = self._backend = plan.backend
        self._builder, self._sampler, self._accept = builder, sampler, plan.bind("aux.accept", "step")
        self.captures = Captures(backend, plan.graphs)
        self._kind = _Kind(0, False, False)  # of the last draws
        self._memory = backend.empty((_WORDS * aligned(slots),), torch.int32)
        self._sent: Int32 = np.zeros(0, dtype=np.int32)  # what was copied there last
        self._moving: list[Any] = []  # the parts of it that move on with a request
        self._views: dict[int, dict[str, Tensor]] = {}
        first, ones = np.arange(slots, dtype=np.int32), np.ones(slots, dtype=np.int32)
        self._first, self._ones, self._none = (backend.from_host(a) for a in (first, ones, ones - 1))

    def run(self, model: Model, hidden: Tensor, draws: Draws, repeats: bool) -> tuple[Drawn, HostFuture]:
        """What the requests drew, and how many tokens each: one.

        Args:
            model: draws.
            hidden: bf16 [T, H], with all rows that a step of its kind may have.
            draws: plain ones.
            repeats: whether ``hidden`` comes to the same address with every step of its kind.
        """
        self._send(draws)
        numbers = draws.inputs.numbers
        self._kind = _Kind(len(draws.rows), numbers.filtered, numbers.greedy)
        token = self._draw(model, hidden, repeats)
        return Drawn(token, self._none[: len(token)], self._backend.to_host(token)), HostArray(draws.counts)

    def run_on(self, model: Model, hidden: Tensor, repeats: bool) -> HostFuture:
        """The tokens, int32 [N], that the requests of the last `run` or `run_on` draw one position further.

        Args:
            model, hidden, repeats: as `run`.
        """
        for array in self._moving:
            array += 1
        self._backend.from_host(self._sent, self._memory)
        return self._backend.to_host(self._draw(model, hidden, repeats))

    def _draw(self, model: Model, hidden: Tensor, repeats: bool) -> Tensor:
        """Tokens int32 [N], drawn by the numbers that were sent."""
        count, filtered, greedy = self._kind
        sent = self._views[count]

        def draw() -> Tensor:
            temperature, top_p, top_k, min_p, seed = (sent[name] for name in Numbers._fields)
            rows, position = sent["rows"], sent["position"]
            if captured:
                own = temperature, top_p, top_k, seed, position, filtered, greedy, min_p
                token = model.draw_tokens(hidden, rows, *own)
            else:
                numbers = SentNumbers(temperature, top_p, top_k, min_p, seed, filtered)
                token, *_ = self._sampler.plain(model.logits(hidden, rows), numbers, position)
            first, ones, none = (array[:count] for array in (self._first, self._ones, self._none))
            last_token, length = self._builder.last_token, self._builder.length
            self._accept(token, none, first, ones, sent["base"], sent["slots"], last_token, length)
            return token

        # Who watches calls, and so captures nothing, wants to see logits.
        captured = repeats and self.captures.enabled
        return self.captures.run((*self._kind, hidden.data_ptr()), draw) if captured else draw()

    def _send(self, draws: Draws) -> None:
        """Bring the numbers of the draws to the device, at the same addresses for as many draws."""
        count, inputs = len(draws.rows), draws.inputs
        values = {"rows": draws.rows, "slots": draws.slots, "base": draws.base, "position": inputs.position}
        self._sent = np.zeros(_WORDS * aligned(count), dtype=np.int32)
        places = _places(self._sent, count)
        for name, place in places.items():
            place[:] = values[name] if name in values else getattr(inputs.numbers, name)
        self._moving = [places["base"], places["position"]]
        self._backend.from_host(self._sent, self._memory)
        if count not in self._views:
            self._views[count] = _places(self._memory, count)


def _places(words: Any, count: int) -> dict[str, Any]:
    """Numbers of ``count`` draws by name in int32 words, an array of numpy or torch."""
    own = (torch.int32, torch.float32, torch.int64) if isinstance(words, Tensor) else (np.int32, np.float32, np.int64)
    stride, places = aligned(count), {}
    for names, dtype in zip((_INTS, _FLOATS, _LONGS), own, strict=True):
        each = 2 * stride if names is _LONGS else stride
        for name in names:
            places[name], words = words[:each].view(dtype)[:count], words[each:]
    return places

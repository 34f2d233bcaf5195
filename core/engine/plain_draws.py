"""Draws without rules, one token a request: what the device needs in one copy, and calls that may be captured."""

from __future__ import annotations

import numpy as np
import torch

from tandem.contract.backend import HostFuture
from tandem.contract.host_memory import HostArray
from tandem.contract.plan import Plan
from tandem.engine.captures import Captures
from tandem.engine.draws import Draws
from tandem.engine.step import StepBuilder
from tandem.engine.step_rows import aligned
from tandem.model.registry import Model
from tandem.sampling.sampler import Drawn, Numbers, Sampler, SentNumbers

Tensor = torch.Tensor
_INTS = ("rows", "slots", "base", "top_k")
_FLOATS = ("temperature", "top_p", "min_p")
_LONGS = ("seed", "position")
_WORDS = len(_INTS) + len(_FLOATS) + 2 * len(_LONGS)


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
        self._memory = backend.empty((_WORDS * aligned(slots),), torch.int32)
        self._views: dict[int, dict[str, Tensor]] = {}
        first, ones = np.arange(slots, dtype=np.int32), np.ones(slots, dtype=np.int32)
        self._first, self._ones, self._none = (backend.from_host(a) for a in (first, ones, ones - 1))

    def run(self, model: Model, hidden: Tensor, draws: Draws, repeats: bool) -> tuple[Drawn, HostFuture]:
        """What the requests drew, and how many tokens each: one.

        Args:
            model: gives the logits.
            hidden: bf16 [T, H], with all rows that a step of its kind may have.
            draws: plain ones.
            repeats: whether ``hidden`` comes to the same address with every step of its kind.
        """
        count, filtered = len(draws.rows), draws.inputs.numbers.filtered
        sent = self.send(draws)

        def draw() -> tuple[Tensor, Tensor, Tensor]:
            temperature, top_p, top_k, min_p, seed = (sent[name] for name in Numbers._fields)
            numbers = SentNumbers(temperature, top_p, top_k, min_p, seed, filtered)
            logits = model.logits(hidden, sent["rows"])
            token, raw, processed = self._sampler.plain(logits, numbers, sent["position"])
            first, ones, none = (array[:count] for array in (self._first, self._ones, self._none))
            own = (self._builder.last_token, self._builder.length)
            self._accept(token, none, first, ones, sent["base"], sent["slots"], *own)
            return token, raw, processed

        if repeats:
            token, raw, processed = self.captures.run((count, filtered, hidden.data_ptr()), draw)
        else:
            token, raw, processed = draw()
        to_host = self._backend.to_host
        drawn = Drawn(token, self._none[:count], to_host(token), to_host(raw), to_host(processed))
        return drawn, HostArray(draws.counts)

    def send(self, draws: Draws) -> dict[str, Tensor]:
        """The numbers of the draws on the device, [N] each; at the same addresses for the same N."""
        count = len(draws.rows)
        stride = aligned(count)
        inputs = draws.inputs
        values = {"rows": draws.rows, "slots": draws.slots, "base": draws.base, "position": inputs.position}
        values |= inputs.numbers._asdict()
        ints = np.zeros((_WORDS, stride), dtype=np.int32)
        floats = ints[len(_INTS) :].view(np.float32)
        longs = ints[len(_INTS) + len(_FLOATS) :].view(np.int64).reshape(len(_LONGS), stride)
        for names, places in ((_INTS, ints), (_FLOATS, floats), (_LONGS, longs)):
            for name, place in zip(names, places, strict=False):
                place[:count] = values[name]
        self._backend.from_host(ints.reshape(-1), self._memory)
        if count not in self._views:
            self._views[count] = self._layout(count, stride)
        return self._views[count]

    def _layout(self, count: int, stride: int) -> dict[str, Tensor]:
        words, views = self._memory, {}
        for names, dtype, each in ((_INTS, torch.int32, 1), (_FLOATS, torch.float32, 1), (_LONGS, torch.int64, 2)):
            for name in names:
                views[name], words = words[: each * stride].view(dtype)[:count], words[each * stride :]
        return views

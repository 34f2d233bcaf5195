"""The real engine under observation: what it computed at every position of every request, and what it chose.

Requests go through scheduler, paged caches and chunks as always.  A backend watches a few ops, the model is
watched for whole steps, and rows are sorted by request and position afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from oracle.choices import Choices
from oracle.model import State, Step

from tandem.backends.cpu.backend import CpuBackend
from tandem.config import load_config
from tandem.contract.opspec import OP_TABLE, OpFunction
from tandem.engine.assembly import assemble
from tandem.engine.engine import Engine
from tandem.engine.outputs import LiveRequest, RequestOutput
from tandem.engine.plan import StepPlan
from tandem.engine.runner import StepHandle
from tandem.model.config import TextConfig
from tandem.model.step import StepInput
from tandem.sampling.params import SamplingParams

Tensor = torch.Tensor
Wrap = Callable[[OpFunction], OpFunction]
GREEDY = {"temperature": 0.0, "ignore_eos": True}
_SEEN_INSIDE = {"hc_collapse", "hc_mix"}  # parts of the ops that cross from one sub-layer to the next


@dataclass
class Seen:
    """What the watched ops of one step saw, in the order of the calls."""

    collapsed: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # trunk and pre entering each step
    mixes: list[Any] = field(default_factory=list)
    remembered: list[Tensor] = field(default_factory=list)  # trunk entering each Engram
    entries: list[Tensor] = field(default_factory=list)  # per index source
    blocks: list[Tensor] = field(default_factory=list)
    experts: list[Tensor] = field(default_factory=list)

    def note(self, op: str, depth: int, args: tuple[Any, ...], result: Any) -> None:
        if op == "hc_collapse":
            self.collapsed.append(args[:2])
        elif op == "hc_mix":
            self.mixes.append(result)
        elif op == "engram_gate":
            self.remembered.append(args[0])
        elif op == "aux.map_entries" and depth == 0:  # nested calls belong to scoring
            self.entries.append(args[0])
        elif op == "pool_expand":
            self.blocks.append(args[0])
        elif op == "moe_route":
            self.experts.append(result[0])


class WatchingBackend(CpuBackend):
    """The CPU backend with its ops observed.

    Args:
        use_native: whether native kernels run where they are built.
        wraps: replacements of bound ops, by op name, applied before watching.
        composites: ops for which the CPU backend's own implementation is not used, beside those that consist of ops
            that are watched or replaced.
    """

    def __init__(
        self, use_native: bool = True, wraps: Mapping[str, Wrap] | None = None, composites: Sequence[str] = ()
    ) -> None:
        super().__init__(use_native)
        self._wraps = wraps or {}
        self._composites = frozenset(composites) | made_of(_SEEN_INSIDE | set(self._wraps) | set(composites))
        self.seen = Seen()
        self._depth = 0

    def implementation(self, op: str) -> OpFunction | None:
        return None if op in self._composites else super().implementation(op)

    def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
        inner = self._wraps[op](function) if op in self._wraps else function

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                result = inner(*args, **kwargs)
            finally:
                self._depth -= 1
            self.seen.note(op, self._depth, args, result)
            return result

        return watched


def made_of(ops: set[str]) -> set[str]:
    """Ops that consist of these, directly or through others."""
    found: set[str] = set()
    while more := {op for op, spec in OP_TABLE.items() if not (ops | found).isdisjoint(spec.parts)} - found:
        found |= more
    return found


@dataclass(frozen=True)
class Ask:
    """A request: a prompt, what marks it, and how many tokens are drawn after it."""

    ids: Sequence[int]
    roles: Sequence[int] | None = None
    embeds: Mapping[int, Tensor] = field(default_factory=dict)
    draws: int = 1
    params: Mapping[str, Any] = field(default_factory=lambda: GREEDY)


@dataclass(frozen=True)
class Trace:
    """One request as the engine computed it; every tensor has a row per position.

    The last drawn token has no row.  `values` is keyed by ("trunk" | "pre" | "post" | "comb", step),
    ("entries" | "blocks" | "experts", layer) and ("logits", 0).
    """

    ids: list[int]
    roles: list[int]
    embeds: Mapping[int, Tensor]
    values: dict[tuple[str, Any], Tensor]
    output: RequestOutput

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def logits(self) -> Tensor:
        return self.values["logits", 0]

    @property
    def states(self) -> dict[Step, State]:
        """The oracle's `entries`."""
        return {key: (value, self.values["pre", key]) for (kind, key), value in self.values.items() if kind == "trunk"}

    @property
    def choices(self) -> Choices:
        """The engine's decisions as the oracle takes them."""

        def listed(kind: str) -> dict[int, list[list[int]]]:
            return {
                layer: [[i for i in row if i >= 0] for row in value.tolist()]
                for (name, layer), value in self.values.items()
                if name == kind
            }

        return Choices(listed("entries"), listed("blocks"), listed("experts"))

    def prefix(self, length: int) -> Trace:
        """The first positions only."""
        values = {key: value[:length] for key, value in self.values.items()}
        return dataclasses.replace(self, ids=self.ids[:length], roles=self.roles[:length], values=values)

    def same_bits(self, other: Trace) -> list[str]:
        """Names of values whose bits differ; empty for equal traces."""
        if self.values.keys() != other.values.keys():
            return ["the kinds of values"]
        return [
            f"{kind} {key}"
            for (kind, key), value in self.values.items()
            if not torch.equal(_bits(value), _bits(other.values[kind, key]))
        ]


def _bits(tensor: Tensor) -> Tensor:
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])


class Watch:
    """Stands in for runner and model, and files what each step computed by request."""

    def __init__(self, engine_parts: Any, backend: WatchingBackend) -> None:
        self._runner, self._model, self._backend = engine_parts.runner, engine_parts.runner.model, backend
        self._text: TextConfig = engine_parts.config.text
        self._live: Mapping[int, LiveRequest] = {}
        self.pieces: dict[int, list[tuple[int, dict[tuple[str, Any], Tensor]]]] = {}
        self.batches: list[int] = []  # entries of each step
        self._runner.model = self

    def launch(self, plan: StepPlan, live: Mapping[int, LiveRequest]) -> StepHandle:
        self._live = live
        self.batches.append(len(plan))
        handle: StepHandle = self._runner.launch(plan, live)
        return handle

    def logits(self, hidden: Tensor, index: Tensor) -> Tensor:
        result: Tensor = self._model.logits(hidden, index)
        return result

    def forward(self, step: StepInput) -> Tensor:
        self._backend.seen = Seen()
        hidden: Tensor = self._model.forward(step)
        seen, rows = self._backend.seen, step.rows
        values = self._values(seen)
        values["logits", 0] = self._model.logits(hidden, torch.arange(hidden.shape[0], dtype=torch.int32))
        values["ids", 0] = rows.ids
        starts = sorted(set(rows.chunk_start.tolist()))
        for start in starts:
            part = slice(start, int(rows.chunk_end[start]))
            request = self._live[int(rows.slot[start])].request_id
            piece = {key: value[part].clone() for key, value in values.items()}
            self.pieces.setdefault(request, []).append((int(rows.positions[start]), piece))
        return hidden

    def _values(self, seen: Seen) -> dict[tuple[str, Any], Tensor]:
        text = self._text
        steps = [(layer, kind) for layer in range(text.num_hidden_layers) for kind in ("attn", "ffn")]
        values: dict[tuple[str, Any], Tensor] = {}
        for key, (trunk, pre) in zip([*steps, (text.num_hidden_layers, "head")], seen.collapsed, strict=True):
            values["trunk", key], values["pre", key] = trunk, pre
        for key, mix in zip(steps, seen.mixes, strict=True):
            values["post", key], values["comb", key] = mix.post, mix.comb.flatten(1)
        for layer, trunk in zip(text.engram_layer_ids, seen.remembered, strict=True):
            values["trunk", (layer, "engram")] = trunk
            values["pre", (layer, "engram")] = values["pre", (layer, "attn")]
        for layer, entries in zip(text.index_source_layer_ids, seen.entries, strict=True):
            values["entries", layer] = entries
        for layer, experts in enumerate(seen.experts):
            values["experts", layer] = experts
        for blocks in seen.blocks:
            missing = text.candidate_topk_blocks - blocks.shape[1]
            values["blocks", text.candidate_source_layer_id] = torch.nn.functional.pad(blocks, (0, missing), value=-1)
        return values

    def merged(self, request: int) -> dict[tuple[str, Any], Tensor]:
        """Values by position; a position computed again must have come out the same."""
        pieces = sorted(self.pieces[request], key=lambda piece: piece[0])
        done, merged = 0, {key: [] for key in pieces[0][1]}
        for start, piece in pieces:
            if start > done:
                raise AssertionError(f"request {request}: positions {done}..{start - 1} were never computed")
            for key, value in piece.items():
                again = torch.cat(merged[key])[start:done] if start < done else value[:0]
                if not torch.equal(_bits(value[: len(again)]), _bits(again[: len(value)])):
                    raise AssertionError(f"request {request}: {key} changed when computed again from {start}")
                merged[key].append(value[done - start :])
            done = max(done, start + len(piece["ids", 0]))
        return {key: torch.cat(values) for key, values in merged.items()}


class Teacher:
    """One engine over a checkpoint.

    Args:
        directory: the checkpoint.
        chunk: most rows of one prompt in a step.
        backend: the backend to watch.
        options: engine options by ``section.field`` instead of the small ones here.
    """

    def __init__(
        self, directory: Path, chunk: int = 256, backend: WatchingBackend | None = None, **options: Any
    ) -> None:
        self.backend = backend or WatchingBackend()
        small = {
            "model.path": str(directory),
            "model.max_model_len": 256,
            "cache.block_size": 16,
            "cache.window_block": 8,
            "scheduler.max_slots": 8,
            "scheduler.max_tokens_per_step": 256,
            "scheduler.max_chunk": chunk,
            "speculation.draft_tokens": 0,
            "cache.prefix": "off",
        }
        config = load_config(env={}, args=small | {key.replace("__", "."): v for key, v in options.items()})
        parts = assemble(config, self.backend, show_progress=False)
        self.watch = Watch(parts, self.backend)
        parts.runner = self.watch  # type: ignore[assignment]
        self.engine = Engine(parts)

    def run(self, asks: Sequence[Ask], every: int = 0) -> list[Trace]:
        """Run requests to their end, one arriving every ``every`` steps (0: all at once)."""
        waiting, numbers, outputs = list(asks), [], {}
        clock = 0
        while waiting or not self.engine.idle:
            while waiting and (not every or clock >= every * len(numbers)):
                numbers.append(self._add(waiting.pop(0)))
            for piece in self.engine.step():
                if piece.output is not None:
                    outputs[piece.request_id] = piece.output
            clock += 1
        return [self._trace(ask, number, outputs[number]) for ask, number in zip(asks, numbers, strict=True)]

    def _add(self, ask: Ask) -> int:
        rows = torch.stack(list(ask.embeds.values())).float().numpy() if ask.embeds else None
        return self.engine.add_request(
            ask.ids,
            SamplingParams(max_tokens=ask.draws, **ask.params),
            roles=ask.roles,
            media_digest=b"" if ask.roles is None else bytes(32),
            embed_rows=rows,
            embed_positions=list(ask.embeds) if ask.embeds else None,
        )

    def _trace(self, ask: Ask, number: int, output: RequestOutput) -> Trace:
        values = self.watch.merged(number)
        ids = values.pop(("ids", 0)).tolist()
        expected = [*ask.ids, *output.token_ids][: len(ids)]
        if ids != expected:
            raise AssertionError(f"request {number}: the model saw other tokens than were asked or drawn")
        roles = [*(ask.roles or [0] * len(ask.ids)), *[0] * (len(ids) - len(ask.ids))]
        return Trace(ids, roles, ask.embeds, values, output)


def random_ids(seed: int, count: int) -> list[int]:
    """Token ids of text: bytes and merged words of the tiny tokenizer."""
    return [int(i) for i in np.random.default_rng(seed).integers(3, 480, count)]

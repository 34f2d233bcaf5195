"""Engines that draft, watched: the raw logits and hidden row behind every token that a request was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.engines import ROOMY, Job, drive
from support.tiny import memory

from tandem.config import load_config
from tandem.engine.draws import Draws
from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput, StreamPiece
from tandem.engine.runner import Queued

Tensor = torch.Tensor
EOS = 1


@dataclass
class Seen:
    """What a request was given: by position of the token its raw logits and hidden row as bytes; the result."""

    logits: dict[int, bytes] = field(default_factory=dict)
    hidden: dict[int, bytes] = field(default_factory=dict)
    pieces: list[StreamPiece] = field(default_factory=list)
    output: RequestOutput | None = None

    @property
    def result(self) -> RequestOutput:
        assert self.output is not None
        return self.output

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.result.token_ids

    def values(self, position: int) -> np.ndarray:
        """Raw logits f32 [V] that the token at a position was drawn from."""
        return np.frombuffer(self.logits[position], dtype=np.float32)


class Bench:
    """An engine that records; a position that is drawn twice (a known token) must give the same bits.

    Args:
        path: checkpoint directory; None for the model that comes with the package.
        options: engine options that differ from `ROOMY`.
    """

    def __init__(self, path: Path | None, options: Mapping[str, Any] | None = None) -> None:
        single = {"scheduler.turn_ms": 0}  # draws are watched step by step
        given = {**ROOMY, **single, **(options or {})} | ({} if path is None else {"model.path": str(path)})
        self.llm = LLM(config=load_config(env={}, args=given))
        self.engine, self.parts = self.llm.engine, self.llm.engine._parts
        self.seen: dict[int, Seen] = {}
        self.spoil: Callable[[int, int], bool] = lambda request, position: False  # rows to make NaN
        self.after_step: Callable[[], None] = lambda: None
        self._owners: dict[int, list[int]] = {}
        runner = self.parts.runner
        self._build, self._draw, self._head = runner.draws.build, runner._draw, runner.model.logits
        self._wanted: Draws | None = None
        self._rows: list[np.ndarray] = []
        runner.plain.captures.enabled = False  # a replay would call nothing that is watched here
        runner.draws.build = self._note  # type: ignore[method-assign]
        runner._draw = self._watch  # type: ignore[method-assign]
        runner.model.logits = self._logits  # type: ignore[method-assign]

    # -- what is watched -----------------------------------------------------------------------

    def _note(self, plan: Any, counts: Any, live: Any) -> Draws | None:
        draws = self._build(plan, counts, live)
        if draws is not None:
            self._owners[id(draws)] = [live[slot].request_id for slot in draws.slots.tolist()]
        return draws

    def _watch(self, forwarded: Any, draws: Draws | None, prompts: Any) -> Queued:
        self._wanted, self._rows = draws, []
        queued = self._draw(forwarded, draws, prompts)
        if draws is None or queued.emitted is None:
            return queued
        owners, logits = self._owners.pop(id(draws)), self._rows[-1]
        hidden = forwarded.hidden[torch.from_numpy(draws.rows.astype(np.int64))].contiguous()
        bits = hidden.view(torch.uint8).numpy()
        for owner, first, base, count in zip(
            owners, draws.first.tolist(), draws.base.tolist(), queued.emitted.result().tolist(), strict=True
        ):
            seen = self.seen.setdefault(owner, Seen())
            for place in range(count):
                row, at = first + place, base + 1 + place
                found = logits[row].tobytes()
                assert seen.logits.setdefault(at, found) == found, "logits changed"
                found = bits[row].tobytes()
                assert seen.hidden.setdefault(at, found) == found, "a hidden row changed"
        return queued

    def _logits(self, hidden: Tensor, index: Tensor) -> Tensor:
        found = self._head(hidden, index)
        draws = self._wanted
        if draws is not None and len(index) == len(draws.rows):
            owners = self._owners[id(draws)]
            for row, segment in enumerate(draws.segment.tolist()):
                if self.spoil(owners[segment], int(draws.inputs.position[row])):
                    found[row, row % found.shape[1]] = float("nan")
        self._rows.append(found.numpy().copy())
        return found

    # -- driving -------------------------------------------------------------------------------

    def add(self, job: Job) -> int:
        request = self.engine.add_request(job.prompt, job.params, **job.extras)
        self.seen.setdefault(request, Seen())
        return request

    def step(self) -> None:
        for piece in self.engine.step():
            seen = self.seen[piece.request_id]
            seen.pieces.append(piece)
            seen.output = piece.output or seen.output
        self.after_step()

    def run(self, jobs: Sequence[Job]) -> list[Seen]:
        """Run jobs to their end; each arrives before the step that it names."""
        ids = drive(self.engine, jobs, self.add, self.step)
        self.check_clean()
        return [self.seen[request] for request in ids]

    def check_clean(self) -> None:
        assert self.parts.table.num_free == self.parts.table.max_slots
        assert self.parts.scheduler.idle and self.parts.scheduler.in_flight == 0
        for pool in self.parts.pools:
            assert pool.num_available == pool.num_blocks

    @property
    def accepted(self) -> int:
        """Drafts that were taken."""
        assert self.parts.book is not None
        return self.parts.book.stats.accepted

    # -- memory --------------------------------------------------------------------------------

    def poison(self) -> None:
        """Fill everything that outlives a step with 0xFF, which is NaN or -1."""
        for tensor in [*memory(self.parts.model.caches), *self._draft_state()]:
            tensor.view(torch.uint8).fill_(0xFF)

    def _draft_state(self) -> list[Tensor]:
        state = self.parts.builder.drafts
        return [] if state is None else [state.tokens, state.weights, state.rates]

    def poison_free(self) -> None:
        """Fill every block and page that nobody holds with 0xFF, once no step runs."""
        for handle in self.engine._flights:
            handle.wait()
        caches, (main, window) = self.parts.model.caches, self.parts.pools
        for pool, groups in ((main, (caches.main, caches.index)), (window, (caches.window,))):
            free = torch.from_numpy(np.flatnonzero(pool.ref_counts == 0))
            for cache in (cache for group in groups for cache in group.values()):
                entries = cache.layout.block_entries
                cache.data[: pool.num_blocks * entries].view(pool.num_blocks, entries, -1)[free] = 0xFF


class Forger:
    """Draft logits of a test's own making in place of the model's.

    Args:
        bench: whose drafts are forged.
        logits: (tokens so far, request's slot) -> logits f32 [V] of the next draft.
    """

    def __init__(self, bench: Bench, logits: Callable[[tuple[int, ...], int], np.ndarray]) -> None:
        model, self._table, self._logits = bench.parts.model, bench.parts.table, logits
        self._block, self._head = model.draft_block, model.draft_head
        assert bench.parts.builder.drafts is not None
        self._offers = bench.parts.builder.drafts.tokens  # of the step before, until this one's are committed
        self._slots: list[int] = []
        self._known: dict[int, tuple[int, ...]] = {}  # tokens up to the newest, by slot
        self._chain: dict[int, list[int]] = {}
        model.draft_block = self.block  # type: ignore[method-assign]
        model.draft_head = self.head  # type: ignore[method-assign]

    def block(self, anchors: Tensor, positions: Tensor, slots: Tensor, table: Tensor, first: Tensor) -> Any:
        self._slots = slots.tolist()
        for slot, anchor, position in zip(self._slots, anchors.tolist(), positions.tolist(), strict=True):
            committed = tuple(self._table.tokens[slot, : self._table.num_tokens[slot]].tolist())
            before, taken = self._known.get(slot, ()), self._offers[slot].tolist()
            if before[: len(committed)] != committed[: len(before)] or position > len(before) + len(taken):
                before, taken = committed, []  # another request, or one that starts
            known = max(committed, before, key=len)
            # What was accepted since is what was offered then.
            text = (known + tuple(taken[len(known) - len(before) :]))[:position]
            self._known[slot], self._chain[slot] = (*text, anchor), []
        return self._block(anchors, positions, slots, table, first)

    def head(self, base: Tensor, hidden: Tensor, previous: Tensor, i: int) -> tuple[Tensor, Tensor]:
        _, confidence = self._head(base, hidden, previous, i)
        found = []
        for slot, token in zip(self._slots, previous.tolist(), strict=True):
            if i:
                self._chain[slot].append(token)
            found.append(self._logits(self._known[slot] + tuple(self._chain[slot]), slot))
        return torch.from_numpy(np.stack(found)), confidence


class Oracle:
    """Drafts from texts that are known, right as often as wanted.

    Args:
        texts: prompts with their outputs.
        right: position of a token -> whether the draft for it is right.
        vocab: tokens of the vocabulary.
    """

    def __init__(self, texts: Sequence[Sequence[int]], right: Callable[[int], bool], vocab: int) -> None:
        self._texts, self._right, self._vocab = [tuple(text) for text in texts], right, vocab

    def __call__(self, tokens: tuple[int, ...], slot: int) -> np.ndarray:
        """See `Forger`: all but certain of one token."""
        place = len(tokens)
        known = (text[place] for text in self._texts if len(text) > place and text[:place] == tokens)
        token = next(known, 3 + place % 7)
        if not self._right(place):
            token = (token + 1) % self._vocab
        logits = np.zeros(self._vocab, dtype=np.float32)
        logits[token] = 60.0
        return logits


def mixed(position: int) -> bool:
    """Whether a draft is right, in a pattern with runs of every length."""
    return position * 7 % 11 not in (2, 5, 6)


def never(position: int) -> bool:
    return False


def always(position: int) -> bool:
    return True


def same_seen(got: Seen, want: Seen) -> None:
    """Bitwise: tokens, text, logprobs, pieces in all, and of every token the logits and the hidden row."""
    a, b = got.result, want.result
    assert (a.token_ids, a.text, a.finish_reason, a.stop_reason) == (
        b.token_ids, b.text, b.finish_reason, b.stop_reason
    )  # fmt: skip
    assert a.logprobs == b.logprobs
    assert "".join(piece.text for piece in got.pieces) == a.text
    assert tuple(token for piece in got.pieces for token in piece.token_ids) == a.token_ids
    start = len(a.prompt_token_ids)
    for position in range(start, start + len(a.token_ids)):
        assert got.logits[position] == want.logits[position], f"logits of the token at {position}"
        assert got.hidden[position] == want.hidden[position], f"hidden row before the token at {position}"


def same_all_seen(got: Sequence[Seen], want: Sequence[Seen]) -> None:
    for one, other in zip(got, want, strict=True):
        same_seen(one, other)


def texts_of(seen: Sequence[Seen]) -> Iterator[tuple[int, ...]]:
    """Prompts with their outputs."""
    for one in seen:
        yield (*one.result.prompt_token_ids, *one.tokens)

"""Moves requests in and out of an engine as `RequestState`, with or without what the caches hold.

With cache contents an import goes on where the export stopped; without them, or where they do not fit, the
tokens are computed again.  Both give the same bits.  The receiving engine may have other block sizes, pools and
slots; that it runs the same weights is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tandem.cache.tables import blocks_for
from tandem.contract.types import KVCache
from tandem.engine.assembly import Assembly
from tandem.engine.outputs import LiveRequest, TokenLogprob
from tandem.engine.request_state import RequestState
from tandem.errors import RequestError, TandemError
from tandem.sampling.params import SamplingParams

Array = npt.NDArray[Any]


class _Part(NamedTuple):
    """One paged cache and what a request of some length has in it."""

    name: str
    cache: KVCache
    blocks: Array  # int32 ids, in position order
    skip: int  # entries of the first block that do not belong to it
    entries: int


class Transfer:
    """Reads and writes the device side of requests.

    Args:
        parts: the engine's parts; it may be between any two calls of its own.
    """

    def __init__(self, parts: Assembly) -> None:
        self._parts, self._backend = parts, parts.plan.backend
        self._gather = parts.plan.bind("gather_rows", "transfer")
        self._scatter = parts.plan.bind("scatter_rows", "transfer")

    def export(self, slot: int, live: LiveRequest, with_caches: bool) -> RequestState:
        """The request of a slot; it stays where it is.

        Raises:
            AccountingError: a token of it is still being drawn.
        """
        state = self._parts.table.export_state(slot)
        state = replace(state, past_logprobs=_pack_logprobs(live), rules=live.rules_left(state.rules))
        length = state.num_computed
        if not (with_caches and length):
            return replace(state, num_computed=0)
        device = {name: _newest(self._row(array, slot), length) for name, array in self._rings()}
        device |= {name: self._row(array, slot) for name, array in self._drafts()}
        for part in self._paged(slot, length):
            data = self._backend.kv_export(part.cache, part.blocks).reshape(-1, part.cache.layout.entry_bytes)
            device[part.name] = data[part.skip : part.skip + part.entries].copy()
        return replace(state, device=device, window_start=self._window_start(slot, length))

    def revive(self, state: RequestState, request_id: int) -> LiveRequest:
        """The host side of a request, its output so far read again so that text and stop strings go on.

        Raises:
            RequestError: the output is already complete, or the state is of another model.
        """
        self._check(state)
        params, parts = params_of(state), self._parts
        params.check_vocabulary(parts.vocab_size)
        parts.builder.replay.check_request(params.prompt_logprobs)
        prompt, output = state.tokens[: state.prompt_len].tolist(), state.tokens[state.prompt_len :].tolist()
        live = LiveRequest(request_id, tuple(prompt), params, parts.tokenizer, parts.eos_id)
        early = state.sampling.min_tokens
        complete = any(token in live.stop_ids for token in output[max(0, early - 1) :])
        if complete or len(output) >= state.sampling.max_tokens or live.accept(output)[2]:
            raise _unfit("tokens", "the output is already complete")
        if params.structured is not None:
            live.guide = parts.compiler.submit(params.structured).result().guide()
            live.guide.replay(output)
        live.logprobs = _unpack_logprobs(state, output)
        return live

    def admit(self, state: RequestState) -> int:
        """Take in a request that `revive` accepted; returns its slot.

        Raises:
            RequestError, CapacityError: it cannot be served here.
        """
        table, scheduler, builder = self._parts.table, self._parts.scheduler, self._parts.builder
        slot = table.import_state(state)
        try:
            resumed = self._covers(state) and scheduler.adopt(slot, state.num_computed)
            if not resumed:
                scheduler.add(slot)
        except TandemError:
            table.free(slot)
            raise
        try:
            builder.admit(slot)
            if self._parts.book is not None:
                self._parts.book.forget(slot)
            if resumed:
                window_start = self._parts.tables.window.keep_from(state.num_computed)
                builder.resume(slot, window_start, state.device.get("draft.tokens"))
                self._restore(slot, state)
        except BaseException:
            scheduler.cancel(slot)
            raise
        return slot

    def _restore(self, slot: int, state: RequestState) -> None:
        length = state.num_computed
        for name, array in self._rings():
            stored = state.device[name]
            row = np.zeros(tuple(array.shape[1:]), dtype=stored.dtype)
            count = min(len(stored), len(row))
            row[np.arange(length - count, length) % len(row)] = stored[len(stored) - count :]
            self._scatter(array, self._index(slot), self._backend.from_host(row[None]))
        if self._parts.book is not None:
            self._parts.book.restore(slot, state.device["draft.tokens"], state.device["draft.rates"])
        for name, array in self._drafts():
            self._scatter(array, self._index(slot), self._backend.from_host(state.device[name][None]))
        for part in self._paged(slot, length):
            layout, stored = part.cache.layout, state.device[part.name]
            data = np.zeros((len(part.blocks) * layout.block_entries, layout.entry_bytes), dtype=np.uint8)
            # The newest entries are the ones both sides have; an older window may begin elsewhere.
            end, count = part.skip + part.entries, min(part.entries, len(stored))
            data[end - count : end] = stored[len(stored) - count :]
            self._backend.kv_import(part.cache, part.blocks, data.reshape(len(part.blocks), -1))

    def _covers(self, state: RequestState) -> bool:
        """Whether the state has all that rows of this engine may read."""
        length = state.num_computed
        if not length or length >= len(state.tokens) or not set(self._expected(state)) <= set(state.device):
            return False
        if any(state.device[name].shape != array.shape[1:] for name, array in self._drafts()):
            return False  # of another number of drafts
        if state.rules.prompt_logprobs is not None:
            return False  # the scores do not travel; rows that are computed again are scored again
        rings = all(len(state.device[n]) >= min(a.shape[1], length) for n, a in self._rings())
        return rings and state.window_start <= self._parts.tables.window.keep_from(length)

    def _check(self, state: RequestState) -> None:
        vocabulary = self._parts.vocab_size
        if int(state.tokens.min()) < 0 or int(state.tokens.max()) >= vocabulary:
            raise _unfit("tokens", f"not all ids are in 0 .. {vocabulary - 1}")
        if state.embed_rows is not None and state.embed_rows.shape[1:] != (self._parts.config.text.hidden_size,):
            raise _unfit("embed_rows", f"shape {state.embed_rows.shape}")
        if state.num_computed:
            self._check_device(state)

    def _check_device(self, state: RequestState) -> None:
        expected = self._expected(state)
        odd = {name for name in set(state.device) ^ set(expected) if not self._of_drafts(name)}
        if odd:
            raise _unfit("device arrays", f"{', '.join(sorted(odd))} on one side only")
        for name, found in state.device.items():
            if name in expected and not name.startswith("draft."):
                dtype, length, entry = expected[name]
                shape = (len(found) if length is None else length, *entry)
                if found.dtype.name != dtype or found.shape != shape:
                    raise _unfit(f"device array '{name}'", f"{found.dtype} {found.shape}, expected {dtype} {shape}")

    def _expected(self, state: RequestState) -> dict[str, tuple[str, int | None, tuple[int, ...]]]:
        """Data type, length (None: any) and shape of an entry of each device array."""
        length = state.num_computed
        expected: dict[str, tuple[str, int | None, tuple[int, ...]]] = {}
        for name, cache, ratio in self._caches():
            entries = length - state.window_start if ratio is None else length // ratio
            expected[name] = "uint8", entries, (cache.layout.entry_bytes,)
        for name, array in self._rings():
            expected[name] = _dtype(array), None, tuple(array.shape[2:])
        for name, array in self._drafts():
            expected[name] = _dtype(array), int(array.shape[1]), tuple(array.shape[2:])
        return expected

    def _of_drafts(self, name: str) -> bool:
        """Whether a device array exists only with speculation; without it a request is computed again."""
        kind, _, layer = name.partition(".")
        stage = kind == "window" and layer.isdigit() and int(layer) >= self._parts.config.text.num_hidden_layers
        return kind == "draft" or stage

    def _caches(self) -> Iterator[tuple[str, KVCache, int | None]]:
        """Every paged cache by name; tokens per entry of main and index caches, None for windows."""
        caches, block_size = self._parts.model.caches, self._parts.tables.main.block_size
        for kind, by_layer in (("main", caches.main), ("index", caches.index)):
            for layer, cache in by_layer.items():
                yield f"{kind}.{layer}", cache, block_size // cache.layout.block_entries
        for layer, cache in caches.window.items():
            yield f"window.{layer}", cache, None

    def _paged(self, slot: int, length: int) -> Iterator[_Part]:
        """What the first ``length`` tokens of a slot have in each paged cache."""
        main, window = self._parts.tables
        blocks = main.blocks(slot)[: blocks_for(length, main.block_size)]
        start, size = self._window_start(slot, length), window.block_size
        first = int(window.first[slot])
        pages = window.blocks(slot)[start // size - first : blocks_for(length, size) - first]
        for name, cache, ratio in self._caches():
            if ratio is None:
                yield _Part(name, cache, pages, start % size, length - start)
            else:
                yield _Part(name, cache, blocks, 0, length // ratio)

    def _window_start(self, slot: int, length: int) -> int:
        """Lowest position that is kept; a request that began with a cached prefix has none before that needs."""
        window = self._parts.tables.window
        return max(window.keep_from(length), int(window.first[slot]) * window.block_size)

    def _rings(self) -> Iterator[tuple[str, torch.Tensor]]:
        """State arrays [R + 1, positions mod size, ...] by name."""
        caches = self._parts.model.caches
        for layer, array in caches.compressor.items():
            yield f"compressor.{layer}", array
        if caches.history is not None:
            yield "ngram", caches.history

    def _drafts(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Arrays [R + 1, B, ...] of drafts by name; nothing without speculation."""
        state = self._parts.builder.drafts
        if state is not None:
            yield "draft.tokens", state.tokens
            yield "draft.rates", state.rates
            yield "draft.weights", state.weights.view(*state.tokens.shape, -1)

    def _row(self, array: torch.Tensor, slot: int) -> Array:
        row: Array = self._backend.to_host(self._gather(array, self._index(slot))).result()[0]
        return row

    def _index(self, slot: int) -> torch.Tensor:
        return self._backend.from_host(np.array([slot], dtype=np.int32))


def _dtype(array: torch.Tensor) -> str:
    return "float32" if array.is_floating_point() else "int32"


def _newest(ring: Array, length: int) -> Array:
    """Entries of the newest positions in order, from an array keyed by position mod its size."""
    found: Array = ring[np.arange(max(0, length - len(ring)), length) % len(ring)]
    return found


def params_of(state: RequestState) -> SamplingParams:
    """The sampling parameters a state was made from (temperature, top_p and min_p as float32; of n outputs, one).

    Raises:
        RequestError: they cannot be used.
    """
    numbers = state.sampling
    return SamplingParams(
        temperature=numbers.temperature,
        top_p=numbers.top_p,
        top_k=numbers.top_k,
        max_tokens=numbers.max_tokens,
        min_tokens=numbers.min_tokens,
        stop=state.stop_strings,
        stop_token_ids=state.stop_token_ids,
        ignore_eos=numbers.ignore_eos,
        seed=numbers.seed,
        logprobs=state.logprobs,
        processed_logprobs=state.processed_logprobs,
        logit_bias=state.logit_bias,
        min_p=numbers.min_p,
        priority=numbers.priority,
        **state.rules.to_fields(),
    )


def _pack_logprobs(live: LiveRequest) -> dict[str, Array]:
    known = live.logprobs
    if not known:
        return {}
    packed: dict[str, Array] = {"raw": np.array([p.raw for p in known], dtype=np.float32)}
    tops = {"top": [p.top for p in known]}
    if live.params.processed_logprobs:
        packed["processed"] = np.array([p.processed for p in known], dtype=np.float32)
        tops["top_processed"] = [p.top_processed for p in known]
    for name, top in tops.items():
        width = max(map(len, top))
        packed[f"{name}_ids"] = np.array([[*t, *[-1] * (width - len(t))] for t in top], dtype=np.int32)
        packed[name] = np.array([[*t.values(), *[0.0] * (width - len(t))] for t in top], dtype=np.float32)
    return packed


def _unpack_logprobs(state: RequestState, output: list[int]) -> list[TokenLogprob]:
    packed = state.past_logprobs
    if state.logprobs is None or not output:
        return []
    wanted = {"raw", "top_ids", "top"}
    if state.processed_logprobs:
        wanted |= {"processed", "top_processed_ids", "top_processed"}
    if wanted != set(packed):
        raise _unfit("past_logprobs", f"it holds {sorted(packed)}")
    processed = packed["processed"].tolist() if "processed" in packed else [None] * len(output)
    top_processed = _tops(packed, "top_processed") if "processed" in packed else [{} for _ in output]
    columns = (packed["raw"].tolist(), processed, _tops(packed, "top"), top_processed)
    return [TokenLogprob(*item) for item in zip(output, *columns, strict=True)]


def _tops(packed: Mapping[str, Array], name: str) -> list[dict[int, float]]:
    ids, values = packed[f"{name}_ids"].tolist(), packed[name].tolist()
    return [
        {token: value for token, value in zip(*pair, strict=True) if token >= 0}
        for pair in zip(ids, values, strict=True)
    ]


def _unfit(where: str, why: str) -> RequestError:
    return RequestError(
        "a request state does not fit this engine",
        where=f"request state, {where}",
        why=why,
        fix="import it into an engine of the same model, or send the prompt anew",
    )

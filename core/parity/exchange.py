"""Requests with their cache pages, moved between backends through files: prefill on one, decode on another.

The directory has the form of a trace without calls: the states stand in the header under ``states``, their arrays in
the tensor files, and the same rules make it safe to read.  Pages are canonical entries in position order, so block
sizes and layouts of the two sides are their own business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tandem.config import EngineConfig
from tandem.contract.backend import Backend
from tandem.engine.assembly import assemble
from tandem.engine.draw_rules import DrawRules
from tandem.engine.engine import Engine
from tandem.engine.outputs import RequestOutput
from tandem.engine.request_state import RequestState, Sampling
from tandem.errors import RequestError, TandemError, TraceError
from tandem.parity import limits
from tandem.parity.limits import integer, keys, mapping, refuse, require, sequence, text
from tandem.parity.record import MAX_PROMPTS, Prompt, describe, fit, model_directory, model_hashes
from tandem.parity.trace import Trace
from tandem.parity.values import encode
from tandem.parity.writer import TraceWriter, require_empty
from tandem.sampling.params import SamplingParams
from tandem.tokenizer.tokenizer import Tokenizer

_NUMBERS = ("prompt_len", "num_computed", "rng_position", "window_start")
_TEXTS = ("stop_strings", "stop_token_ids")


def export_pages(
    config: EngineConfig,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    out: Path,
    backend: Backend | None = None,
    show_progress: bool | None = None,
) -> list[RequestState]:
    """Compute prompts up to their first drawn token, and write requests and cache pages.

    The requests then go on here to their end, and what was drawn is written too, for the other side to compare with.

    Args:
        config, backend: as `tandem.parity.record.record`.
        params: of all prompts, kept for the side that goes on; no logprobs, no logit bias.
    Raises:
        TraceError: ``out`` is not empty.  RequestError: a request ends with its first token.
    """
    require_empty(out)
    directory = model_directory(config)
    tokenizer = Tokenizer.load(directory)
    tokens = [tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    sized = fit(config, max(map(len, tokens)) + params.max_tokens, len(tokens))
    parts = assemble(sized, backend, show_progress)
    try:
        engine, states, ended = Engine(parts), dict[int, RequestState](), dict[int, list[int]]()
        numbers = [engine.add_request(prompt, params) for prompt in tokens]
        while not engine.idle:
            for piece in engine.step():
                if piece.output is not None and piece.output.error is not None:
                    raise piece.output.error
                if piece.request_id not in states:
                    states[piece.request_id] = engine.export_request(piece.request_id, with_caches=True)
                if piece.output is not None:
                    ended[piece.request_id] = list(piece.output.token_ids)
        writer = TraceWriter(out, describe(parts.plan.backend) | {"model": model_hashes(directory, show_progress)})
        ordered = [states[number] for number in numbers]
        continued = [ended[number] for number in numbers]
        writer.close(states=[_tree(state, writer) for state in ordered], continued=continued)
        return ordered
    finally:
        parts.close()


def import_pages(
    config: EngineConfig, pages: Path | Trace, backend: Backend | None = None, show_progress: bool | None = None
) -> list[RequestOutput]:
    """Take in exported requests and run them to their end.

    Returns:
        Their outputs, what was drawn before the export included.
    Raises:
        TraceError: the files are damaged, of another contract or of another model.
    """
    trace = pages if isinstance(pages, Trace) else Trace.open(pages)
    states = read_states(trace)
    found = model_hashes(model_directory(config), show_progress)["sha256"]
    said = mapping(trace.header.get("model"), str(trace.path))
    if said.get("sha256") != found:
        raise TraceError(
            "cache pages are of another model",
            where=str(trace.path),
            why=f"its files have the hash {str(said.get('sha256'))[:12]}, those here {found[:12]}",
            fix="run the model that the pages were computed with",
        )
    longest = max(state.prompt_len + state.sampling.max_tokens for state in states)
    parts = assemble(fit(config, longest, len(states)), backend, show_progress)
    try:
        engine, finished = Engine(parts), dict[int, RequestOutput]()
        numbers = [engine.import_request(state) for state in states]
        while not engine.idle:
            finished |= {piece.request_id: piece.output for piece in engine.step() if piece.output is not None}
        return [finished[number] for number in numbers]
    finally:
        parts.close()


@dataclass(frozen=True)
class Continuation:
    """What two sides drew after the same prompt.

    Args:
        one, two: tokens of the exporting and of the importing side.
    """

    one: tuple[int, ...]
    two: tuple[int, ...]

    @property
    def first(self) -> int | None:
        """The first place where they differ, which may be the end of one; None where they do not."""
        if self.one == self.two:
            return None
        pairs = enumerate(zip(self.one, self.two, strict=False))
        return next((i for i, (a, b) in pairs if a != b), min(len(self.one), len(self.two)))

    def told(self) -> str:
        """One line."""
        if self.first is None:
            return f"the same {len(self.two)} tokens as the exporting side"
        a, b = (str(side[self.first]) if self.first < len(side) else "the end" for side in (self.one, self.two))
        return (
            f"token {self.first} differs from the exporting side: {a} there, {b} here; whether that may be a tie show "
            f"parity record on one side, and replay --mode free and diff on the other"
        )


def compare_continued(trace: Trace, outputs: Sequence[RequestOutput]) -> list[Continuation]:
    """What the exporting side drew beside what was drawn here; empty where the files do not say.

    Raises:
        TraceError: the files say something else than tokens of as many requests.
    """
    where = f"{trace.path}, continued"
    if "continued" not in trace.header:
        return []
    there = [sequence(one, where) for one in sequence(trace.header["continued"], where, MAX_PROMPTS)]
    require(len(there) == len(outputs), where, "it is of another number of requests")
    drawn = [tuple(integer(token, where, 0, 1 << 31) for token in one) for one in there]
    return [Continuation(one, tuple(output.token_ids)) for one, output in zip(drawn, outputs, strict=True)]


def _tree(state: RequestState, writer: TraceWriter) -> dict[str, Any]:
    if state.embed_rows is not None or state.past_logprobs or state.logit_bias or state.rules != DrawRules():
        raise RequestError(
            "a request cannot be exported to files",
            where="parity kv-export",
            why="it has embedded rows, logprobs, a logit bias, penalties, bad words, forced tokens or a deadline",
            fix="export a plain text request",
        )
    arrays = {"tokens": state.tokens} | {f"device/{name}": array for name, array in state.device.items()}
    return {
        "numbers": {name: getattr(state, name) for name in _NUMBERS},
        "sampling": asdict(state.sampling),
        "stop_strings": list(state.stop_strings),
        "stop_token_ids": list(state.stop_token_ids),
        "arrays": {name: encode(torch.from_numpy(array), writer.put) for name, array in arrays.items()},
    }


def read_states(trace: Trace) -> list[RequestState]:
    """The requests of exchanged files.

    Raises:
        TraceError: there are none, or one is inconsistent.
    """
    where = f"{trace.path}, states"
    states = [_state(tree, trace, where) for tree in sequence(trace.header.get("states"), where, MAX_PROMPTS)]
    require(bool(states), where, "it holds no request")
    return states


def _state(tree: Any, trace: Trace, where: str) -> RequestState:
    keys(mapping(tree, where), {"numbers", "sampling", "arrays", *_TEXTS}, set(), where)
    numbers, arrays = mapping(tree["numbers"], where), mapping(tree["arrays"], where)
    keys(numbers, set(_NUMBERS), set(), where)
    require(len(arrays) <= limits.MAX_SHARDS and "tokens" in arrays, where, "its arrays lack the tokens")
    values = {name: trace.tensor(item, where).numpy() for name, item in arrays.items()}
    tokens = values.pop("tokens")
    require(all(name.startswith("device/") for name in values), where, "an array is of no known kind")
    try:
        return RequestState(
            tokens=tokens,
            prompt_len=integer(numbers["prompt_len"], where, 0, 1 << 31),
            num_computed=integer(numbers["num_computed"], where, 0, 1 << 31),
            rng_position=integer(numbers["rng_position"], where, 0, 1 << 31),
            window_start=integer(numbers["window_start"], where, 0, 1 << 31),
            sampling=_sampling(mapping(tree["sampling"], where), where),
            stop_strings=tuple(text(item, where) for item in sequence(tree["stop_strings"], where, 1000)),
            stop_token_ids=tuple(integer(n, where, 0, 1 << 31) for n in sequence(tree["stop_token_ids"], where, 1000)),
            device={name.removeprefix("device/"): np.ascontiguousarray(array) for name, array in values.items()},
            contract=(trace.header["contract"][0], trace.header["contract"][1]),
        )
    except TraceError:
        raise
    except TandemError as error:
        refuse(where, f"{error.where}: {error.why}")


def _sampling(numbers: dict[str, Any], where: str) -> Sampling:
    kinds = {name: type(value) for name, value in asdict(Sampling(1)).items()}
    newer = {"min_p", "priority"}  # files of contract 1.0 lack them
    keys(numbers, set(kinds) - newer, newer, where)
    for name, value in numbers.items():
        kind = kinds[name]
        fits = type(value) is kind or (kind is float and type(value) is int)
        require(fits, where, f"sampling.{name} is {str(value)[:40]}")
    return Sampling(**numbers)

"""The library's front door: load a model, generate, chat, stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tandem.config import EngineConfig, load_config
from tandem.contract.backend import Backend
from tandem.contract.registry import parse_selector
from tandem.engine.assembly import assemble
from tandem.engine.curve import use_curve
from tandem.engine.engine import Engine
from tandem.engine.outputs import RequestOutput, StreamPiece
from tandem.errors import ConfigError, RequestError, TandemError
from tandem.sampling.params import SamplingParams
from tandem.tokenizer.chat import render_chat
from tandem.tokenizer.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A model on a backend.

    Args:
        model: checkpoint directory; default: as configured, else the small model that comes with Tandem.
        backend: ``name`` or ``name:index``, or an open backend; default: as configured.
        options: engine options by ``section.field``, such as ``{"model.max_model_len": 512}``.
        config_file: TOML or JSON file with engine options; environment and ``options`` override it.
        config: a ready configuration instead of all that.
        show_progress: show a bar while loading; by default only on a terminal.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        backend: Backend | str | None = None,
        options: Mapping[str, Any] | None = None,
        config_file: str | Path | None = None,
        config: EngineConfig | None = None,
        show_progress: bool | None = None,
    ) -> None:
        named = backend if isinstance(backend, str) else None
        if config is not None and any(given is not None for given in (model, options, config_file, named)):
            raise ConfigError(
                "a ready configuration came with other options",
                where="LLM(config=...)",
                why="model, options, config_file and a named backend would be ignored beside it",
                fix="put them into the configuration, or leave config out",
            )
        chosen: dict[str, Any] = dict(options or {})
        if model is not None:
            chosen["model.path"] = str(model)
        if named is not None:
            chosen["backend.name"], chosen["backend.device"] = parse_selector(named)
        self.config = config or load_config(config_file, args=chosen)
        self._assembly = assemble(self.config, None if isinstance(backend, str) else backend, show_progress)
        self.engine = Engine(self._assembly)
        use_curve(self.engine, self._assembly, self.config)
        self._boxes: dict[int, deque[StreamPiece]] = {}  # what a step gave to requests whose reader comes later

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._assembly.tokenizer

    @property
    def backend(self) -> Backend:
        """The backend the model runs on."""
        return self._assembly.plan.backend

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Run prompts to their end.

        Args:
            prompts: text or token ids, one or several.
            params: one for all, or one per prompt; default SamplingParams().
        Returns:
            One result per prompt, in order; with ``n`` above 1 its `RequestOutput.copies` are all its outputs.  A
            prompt that cannot be served has its error in its result.
        """
        batch = _as_batch(prompts)
        each = _params_for(params, len(batch))
        results: list[RequestOutput | list[int]] = []
        try:
            for prompt, one in zip(batch, each, strict=True):
                try:
                    results.append(self._open(prompt, one))
                except TandemError as error:
                    results.append(RequestOutput(-1, (), finish_reason="error", error=error))
            return [self._finish(item) if isinstance(item, list) else item for item in results]
        finally:
            for item in results:
                if isinstance(item, list):
                    self._leave(item)

    def chat(self, messages: Messages, params: SamplingParams | None = None, thinking: bool = False) -> RequestOutput:
        """Answer a conversation of {"role", "content"} messages, rendered in the model's chat format.

        Raises:
            RequestError: the messages are malformed.
        """
        return self.generate([render_chat(messages, self.tokenizer, thinking)], params)[0]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamPiece]:
        """Pieces of one prompt as steps produce them; leaving the iterator early cancels what has not ended.

        With ``n`` above 1 the pieces of all outputs come in turn, told apart by `StreamPiece.copy`.

        Raises:
            RequestError, CapacityError: the request cannot be served.
        """
        yield from self._pieces(self._open(prompt, params or SamplingParams()))

    def _open(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        """Queue a prompt; the ids of its requests, which share a box."""
        requests = self.submit_copies(prompt, params)
        box: deque[StreamPiece] = deque()
        self._boxes.update(dict.fromkeys(requests, box))
        return requests

    def _pieces(self, requests: list[int]) -> Iterator[StreamPiece]:
        """Pieces of an opened prompt; a step also serves those who read other requests."""
        box, left = self._boxes[requests[0]], len(requests)
        try:
            while left and (box or not self.engine.idle):
                if not box:
                    self._step()
                    continue
                piece = box.popleft()
                left -= piece.output is not None
                yield piece
        finally:
            self._leave(requests)

    def _finish(self, requests: list[int]) -> RequestOutput:
        return join_copies([piece.output for piece in self._pieces(requests) if piece.output is not None])

    def _step(self) -> None:
        for piece in self.engine.step():
            if piece.request_id in self._boxes:
                self._boxes[piece.request_id].append(piece)

    def _leave(self, requests: list[int]) -> None:
        """Forget an opened prompt, and cancel what of it has not ended."""
        for request_id in requests:
            if self._boxes.pop(request_id, None) is not None:
                self.engine.cancel(request_id)

    def submit(self, prompt: Prompt, params: SamplingParams) -> int:
        """Queue one prompt for one output; returns the request id that `Engine.step` reports.

        Raises:
            RequestError, CapacityError: the request cannot be served.
        """
        return self.engine.add_request(self._tokens(prompt), params)

    def submit_copies(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        """Queue one prompt for ``params.n`` outputs; returns their request ids.

        Raises:
            RequestError, CapacityError: the request cannot be served.
        """
        return self.engine.add_copies(self._tokens(prompt), params)

    def _tokens(self, prompt: Prompt) -> Sequence[int]:
        if isinstance(prompt, str) and not prompt:
            raise RequestError(
                "a prompt cannot be used", where="prompt", why="it is empty", fix="give at least one character"
            )
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def close(self) -> None:
        """Release the backend, model and threads; requests that have not ended are lost."""
        self.engine.close()


def join_copies(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """All outputs of one prompt, in any order, as one result."""
    first, *others = sorted(outputs, key=lambda output: output.copy)
    return replace(first, others=tuple(others))


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, bytes | bytearray | Mapping | Set) or not isinstance(prompts, Sequence | np.ndarray):
        raise RequestError(
            "prompts cannot be used",
            where="prompts",
            why=f"they are of type {type(prompts).__name__}",
            fix="give a text, a list of token ids, or a list of those",
        )
    if isinstance(prompts, str) or (len(prompts) and all(isinstance(p, int | np.integer) for p in prompts)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _params_for(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if isinstance(params, str | Mapping) or not isinstance(params, Sequence):
        raise RequestError(
            "sampling parameters cannot be used",
            where="params",
            why=f"they are of type {type(params).__name__}",
            fix="give a SamplingParams, or a list with one per prompt",
        )
    if len(params) != count:
        raise RequestError(
            "prompts and sampling parameters do not match",
            where="params",
            why=f"{count} prompts came with {len(params)} sets of parameters",
            fix="give one set for all, or one per prompt",
        )
    return list(params)

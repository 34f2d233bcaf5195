"""Engines that follow grammars, watched: what each guide took, which masks it gave, and drafts that are scripted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.engines import ROOMY
from support.structured_random import Output

from tandem.config import load_config
from tandem.engine.llm import LLM
from tandem.engine.outputs import LiveRequest, RequestOutput
from tandem.sampling.params import SamplingParams
from tandem.structured import Compiler, Guide, StructuredSpec

Prompt = Sequence[int]
Work = tuple[Prompt, SamplingParams]
PLAIN: Mapping[str, Any] = {"speculation.draft_tokens": 0}
DRAFTS: Mapping[str, Any] = {"speculation.draft_tokens": None}
COUPLED: Mapping[str, Any] = {**DRAFTS, "speculation.accept": "coupled"}
OVERLAP: Mapping[str, Any] = {"scheduler.overlap": "on"}


def open_engine(path: Path, *options: Mapping[str, Any], compiler: Compiler | None = None) -> LLM:
    """An engine with `ROOMY` and other options; with ``compiler`` in place of one of its own."""
    merged = {key: value for part in (ROOMY, *options) for key, value in part.items()}
    llm = LLM(config=load_config(env={}, args={**merged, "model.path": str(path)}))
    if compiler is not None:
        llm._assembly.compiler = compiler
    return llm


@dataclass
class Watch:
    """What guides of an engine did.

    Attributes:
        taken: by request id, the tokens that its guide took since it was made or replayed.
        masks: (guide, tokens taken before, drafts, rows) of every `Guide.masks`.
    """

    taken: dict[int, list[int]] = field(default_factory=dict)
    masks: list[tuple[Guide, list[int], list[int], np.ndarray]] = field(default_factory=list)


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch all guides of the process."""
    found = Watch()
    accept, masks, restart, output = Guide.accept, Guide.masks, Guide._restart, LiveRequest.output
    logs: dict[Guide, list[int]] = {}

    def logging_restart(guide: Guide) -> None:
        logs[guide] = []
        restart(guide)

    def logging_accept(guide: Guide, tokens: Sequence[int]) -> int:
        count = accept(guide, tokens)
        logs[guide] += tokens[:count]
        return count

    def logging_masks(guide: Guide, drafts: Sequence[int]) -> np.ndarray:
        rows = masks(guide, drafts)
        found.masks.append((guide, list(logs[guide]), list(drafts), rows.copy()))
        return rows

    def logging_output(live: LiveRequest, *arguments: Any) -> RequestOutput:
        if live.guide is not None:
            found.taken[live.request_id] = list(logs[live.guide])
        return output(live, *arguments)

    Guide._restart, Guide.accept, Guide.masks = logging_restart, logging_accept, logging_masks  # type: ignore
    LiveRequest.output = logging_output  # type: ignore[assignment, method-assign]
    try:
        yield found
    finally:
        Guide._restart, Guide.accept, Guide.masks = restart, accept, masks  # type: ignore[method-assign]
        LiveRequest.output = output  # type: ignore[method-assign]


def run(llm: LLM, work: Sequence[Work], gap: int = 0) -> list[RequestOutput]:
    """Run requests to their end, one arriving every ``gap`` steps; each guide took the tokens of its output."""
    engine, ids, found, steps = llm.engine, [], {}, 0
    with watched() as watch:
        while len(ids) < len(work) or not engine.idle:
            while len(ids) < len(work) and len(ids) * gap <= steps:
                prompt, params = work[len(ids)]
                ids.append(engine.add_request(prompt, params))
            for piece in engine.step():
                if piece.output is not None:
                    found[piece.request_id] = piece.output
            steps += 1
    for request, (_, params) in zip(ids, work, strict=True):
        if params.structured is not None and request in watch.taken and found[request].error is None:
            tokens = list(found[request].token_ids)
            taken = watch.taken[request]
            # A stop string is found in the text, when the tokens of its step are long accepted.
            assert taken[: len(tokens)] == tokens and (params.stop or len(taken) == len(tokens))
    return [found[request] for request in ids]


def alone(llm: LLM, work: Sequence[Work]) -> list[RequestOutput]:
    """Each request by itself."""
    return [run(llm, [one])[0] for one in work]


def same(got: Iterable[RequestOutput], want: Iterable[RequestOutput]) -> None:
    """Same tokens, same ends."""
    for one, other in zip(got, want, strict=True):
        assert (one.token_ids, one.finish_reason, one.text) == (other.token_ids, other.finish_reason, other.text)
        assert (one.error and one.error.why) == (other.error and other.error.why)


def plain_tokens(output: RequestOutput, eos_id: int) -> tuple[list[int], bool]:
    """Tokens without the end token, and whether the grammar ended the output."""
    tokens = list(output.token_ids)
    if tokens and tokens[-1] == eos_id:
        tokens.pop()
    return tokens, output.finish_reason == "stop"


def generator(
    llm: LLM, prompt: str, max_tokens: int, free: int, gap: int = 0
) -> Callable[[Sequence[StructuredSpec]], list[Output]]:
    """For `check_outputs`: all forms in one batch, at temperature 1, among ``free`` requests without a form."""

    def generate(specs: Sequence[StructuredSpec]) -> list[Output]:
        ids = llm.tokenizer.encode(prompt)
        params = [SamplingParams(max_tokens=max_tokens, seed=i, structured=spec) for i, spec in enumerate(specs)]
        others = [SamplingParams(max_tokens=max_tokens, seed=i, ignore_eos=True) for i in range(free)]
        stride = max(1, len(params) // max(1, free))
        work: list[Work] = []
        for place, one in enumerate(params):
            work.append((ids, one))
            if place % stride == 0 and others:
                work.append((ids, others.pop()))
        outputs = run(llm, work, gap)
        formed = [output for output, (_, one) in zip(outputs, work, strict=True) if one.structured is not None]
        found = []
        for output in formed:
            assert output.error is None, output.error
            tokens, ended = plain_tokens(output, llm.engine._parts.eos_id)
            found.append(Output(tokens, output.text, ended))
        return found

    return generate


def script_drafts(llm: LLM, script: Mapping[int, int]) -> None:
    """Have the drafter propose the token of each absolute position, where a grammar's mask allows it."""
    sampler = llm.engine._parts.runner._sampler
    real = type(sampler).draft

    def draft(logits: torch.Tensor, numbers: Any, position: torch.Tensor, bits: Any) -> Any:
        for row, place in enumerate(position.tolist()):
            if place in script:
                logits[row] = -30.0
                logits[row, script[place]] = 30.0
        return real(sampler, logits, numbers, position, bits)

    sampler.draft = draft  # type: ignore[method-assign]


def wait_until(met: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)

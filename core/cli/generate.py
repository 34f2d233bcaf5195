"""`tandem generate`: continue a prompt."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tandem.cli.options import add_engine_flags, add_sampling_flags, engine_config, sampling_params
from tandem.contract.capabilities import labelled
from tandem.engine.llm import LLM, join_copies
from tandem.engine.outputs import RequestOutput, TokenLogprob
from tandem.errors import RequestError
from tandem.sampling.params import SamplingParams
from tandem.tokenizer.tokenizer import Tokenizer


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("generate", help="continue a prompt")
    parser.add_argument("prompt", help="the text to continue; '-' reads standard input")
    add_engine_flags(parser)
    add_sampling_flags(parser)
    parser.add_argument("--n", type=int, default=1, help="outputs of the prompt; the i-th draws with seed + i")
    parser.add_argument(
        "--prompt-logprobs", type=int, metavar="N", help="logprobs of each prompt token and of the N likeliest"
    )
    parser.add_argument(
        "--stream", action="store_true", help="print text as it is drawn (with --json: a line for each step's tokens)"
    )
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    params = replace(sampling_params(arguments), n=arguments.n, prompt_logprobs=arguments.prompt_logprobs)
    if arguments.stream and params.n > 1 and not arguments.json:
        raise RequestError(
            "several texts cannot be shown while they are drawn",
            where="--stream with --n",
            why=f"the pieces of {params.n} texts come in turn",
            fix="leave out --stream, or add --json, whose lines name the copy",
        )
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    llm = LLM(config=engine_config(arguments))
    try:
        started = time.perf_counter()
        output = _stream(llm, prompt, params, arguments.json) if arguments.stream else _plain(llm, prompt, params)
        seconds = time.perf_counter() - started
    finally:
        llm.close()
    if arguments.json:
        print(json.dumps(to_json(output), ensure_ascii=False))
    else:
        _show(output, llm, params, arguments.stream)
        drawn = sum(len(copy.token_ids) for copy in output.copies)
        reasons = ", ".join(dict.fromkeys(copy.finish_reason for copy in output.copies))
        print(
            f"[{len(output.prompt_token_ids)} prompt tokens, {drawn} drawn in {seconds:.2f} s, "
            f"{drawn / seconds:.1f} tokens/s, finished by {reasons}, "
            f"backend {labelled(llm.backend.name, llm.backend.caps.verification)}]",
            file=sys.stderr,
        )
    return 0


def _show(output: RequestOutput, llm: LLM, params: SamplingParams, streamed: bool) -> None:
    if streamed:
        print()
    if output.prompt_logprobs is not None:
        print(logprob_table(output.prompt_logprobs, llm.tokenizer))
    for copy in output.copies:
        if params.n > 1:
            print(f"--- {copy.copy + 1} of {params.n}")
        if not streamed:
            print(copy.text)
        if copy.logprobs is not None:
            print(logprob_table(copy.logprobs, llm.tokenizer))


def _plain(llm: LLM, prompt: str, params: SamplingParams) -> RequestOutput:
    return _served(llm.generate(prompt, params)[0])


def _stream(llm: LLM, prompt: str, params: SamplingParams, as_json: bool) -> RequestOutput:
    outputs = []
    for piece in llm.stream(prompt, params):
        if as_json:
            line: dict[str, Any] = {"token_ids": piece.token_ids, "text": piece.text}
            line |= {"copy": piece.copy} if params.n > 1 else {}
            print(json.dumps(line, ensure_ascii=False), flush=True)
        else:
            print(piece.text, end="", flush=True)
        if piece.output is not None:
            outputs.append(piece.output)
    return _served(join_copies(outputs))


def _served(output: RequestOutput) -> RequestOutput:
    for copy in output.copies:
        if copy.error is not None:
            raise copy.error
    return output


def to_json(output: RequestOutput) -> dict[str, Any]:
    """A result as JSON values, token ids included; a logprob of minus infinity is null."""
    result: dict[str, Any] = {
        "prompt_token_ids": list(output.prompt_token_ids),
        "token_ids": list(output.token_ids),
        "text": output.text,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }
    for name, found in (("logprobs", output.logprobs), ("prompt_logprobs", output.prompt_logprobs)):
        if found is not None:
            result[name] = [_entry(item) for item in found]
    if output.others:
        result["others"] = [to_json(copy) for copy in output.others]
    return result


def _entry(item: TokenLogprob) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "token_id": item.token_id,
        "raw": _finite(item.raw),
        "processed": None if item.processed is None else _finite(item.processed),
        "top": dict(item.top),
    }
    return entry | ({} if item.processed is None else {"top_processed": dict(item.top_processed)})


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def logprob_table(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> str:
    """A line a token: its text, its raw logprob and the alternatives; the processed ones too where they are known."""
    both = any(item.processed is not None for item in entries)
    lines = [f"{'token':>8}  {'text':12}  {'logprob':>8}  {'processed  ' if both else ''}alternatives"]
    for item in entries:
        text = repr(tokenizer.decode([item.token_id], skip_special=False))
        others = _alternatives(item.top, tokenizer)
        if item.processed is not None:
            others = f"{item.processed:9.3f}  {others}"
            if item.top_processed:
                others += f"  processed: {_alternatives(item.top_processed, tokenizer)}"
        lines.append(f"{item.token_id:>8}  {text:12}  {item.raw:8.3f}  {others}")
    return "\n".join(lines)


def _alternatives(top: Mapping[int, float], tokenizer: Tokenizer) -> str:
    return "  ".join(f"{tokenizer.decode([i], skip_special=False)!r} {value:.3f}" for i, value in top.items())

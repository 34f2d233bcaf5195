"""`tandem generate`: continue a prompt."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from tandem.cli.options import add_engine_flags, add_sampling_flags, engine_config, sampling_params
from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput
from tandem.sampling.params import SamplingParams
from tandem.tokenizer.tokenizer import Tokenizer


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("generate", help="continue a prompt")
    parser.add_argument("prompt", help="the text to continue; '-' reads standard input")
    add_engine_flags(parser)
    add_sampling_flags(parser)
    parser.add_argument("--stream", action="store_true", help="print text as it is drawn (with --json: a line a token)")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    params = sampling_params(arguments)
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
        print() if arguments.stream else print(output.text)
        if params.logprobs is not None:
            print(logprob_table(output, llm.tokenizer))
        rate = len(output.token_ids) / seconds
        print(
            f"[{len(output.prompt_token_ids)} prompt tokens, {len(output.token_ids)} drawn in {seconds:.2f} s, "
            f"{rate:.1f} tokens/s, finished by {output.finish_reason}, backend {llm.backend.name}]",
            file=sys.stderr,
        )
    return 0


def _plain(llm: LLM, prompt: str, params: SamplingParams) -> RequestOutput:
    output = llm.generate(prompt, params)[0]
    if output.error is not None:
        raise output.error
    return output


def _stream(llm: LLM, prompt: str, params: SamplingParams, as_json: bool) -> RequestOutput:
    output: RequestOutput | None = None
    for piece in llm.stream(prompt, params):
        if as_json:
            print(json.dumps({"token_ids": piece.token_ids, "text": piece.text}, ensure_ascii=False), flush=True)
        else:
            print(piece.text, end="", flush=True)
        output = piece.output
    if output is None:
        raise AssertionError("a stream ended without an output")
    if output.error is not None:
        raise output.error
    return output


def to_json(output: RequestOutput) -> dict[str, Any]:
    """A result as JSON values, token ids included."""
    result: dict[str, Any] = {
        "prompt_token_ids": list(output.prompt_token_ids),
        "token_ids": list(output.token_ids),
        "text": output.text,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }
    if output.logprobs is not None:
        result["logprobs"] = [
            {"token_id": p.token_id, "raw": p.raw, "processed": p.processed, "top": dict(p.top)}
            for p in output.logprobs
        ]
    return result


def logprob_table(output: RequestOutput, tokenizer: Tokenizer) -> str:
    """A line a token: its text, its raw logprob and the alternatives."""
    lines = [f"{'token':>8}  {'text':12}  {'logprob':>8}  alternatives"]
    for item in output.logprobs or ():
        text = repr(tokenizer.decode([item.token_id], skip_special=False))
        others = "  ".join(
            f"{tokenizer.decode([i], skip_special=False)!r} {value:.3f}" for i, value in item.top.items()
        )
        lines.append(f"{item.token_id:>8}  {text:12}  {item.raw:8.3f}  {others}")
    return "\n".join(lines)

"""`tandem chat`: talk to a model turn by turn."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tandem.cli.generate import to_json
from tandem.cli.options import add_engine_flags, add_sampling_flags, engine_config, sampling_params
from tandem.engine.llm import LLM
from tandem.engine.outputs import RequestOutput
from tandem.errors import RequestError
from tandem.sampling.params import SamplingParams
from tandem.tokenizer.chat import render_chat

END_WORDS = ("/quit", "/exit")
RESET_WORD = "/reset"


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "chat", help="talk to a model", description="Talk to a model, a line a turn; /reset begins anew, /quit ends."
    )
    add_engine_flags(parser)
    add_sampling_flags(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--thinking", action="store_true", help="let the model reason before it answers")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Read a line, answer it, until the input ends."""
    params = sampling_params(arguments)
    llm = LLM(config=engine_config(arguments))
    start = [{"role": "system", "content": arguments.system}] if arguments.system else []
    messages = list(start)
    interactive = sys.stdin.isatty() and not arguments.json
    try:
        while (line := _read(interactive)) is not None:
            if line.strip() == RESET_WORD:
                messages = list(start)
            if line.strip() in ("", RESET_WORD):
                continue
            messages.append({"role": "user", "content": line})
            try:
                output = _answer(llm, messages, params, arguments)
            except RequestError as error:
                messages.pop()
                if not interactive:
                    raise
                print(f"tandem: {error} ({RESET_WORD} begins a new conversation)", file=sys.stderr)
                continue
            messages.append({"role": "assistant", "content": output.text})
    finally:
        llm.close()
    return 0


def _read(interactive: bool) -> str | None:
    if interactive:
        print("> ", end="", flush=True)
    line = sys.stdin.readline()
    if not line or line.strip() in END_WORDS:
        return None
    return line.rstrip("\n")


def _answer(
    llm: LLM, messages: list[dict[str, str]], params: SamplingParams, arguments: argparse.Namespace
) -> RequestOutput:
    prompt = render_chat(messages, llm.tokenizer, arguments.thinking)
    output: RequestOutput | None = None
    for piece in llm.stream(prompt, params):
        if not arguments.json:
            print(piece.text, end="", flush=True)
        output = piece.output
    if output is None:
        raise AssertionError("a stream ended without an output")
    if output.error is not None:
        raise output.error
    print(json.dumps(to_json(output), ensure_ascii=False) if arguments.json else "")
    return output

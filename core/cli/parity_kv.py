"""`tandem parity kv-export` and `tandem parity kv-import`: prefill on one backend, decode on another."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tandem.cli.options import add_engine_flags, engine_config, positive
from tandem.parity.exchange import compare_continued, export_pages, import_pages
from tandem.parity.record import read_prompts
from tandem.parity.trace import Trace
from tandem.sampling.params import SamplingParams


def add_parsers(commands: Any) -> None:
    """Register both."""
    out: argparse.ArgumentParser = commands.add_parser(
        "kv-export", help="compute prompts, and write requests with their cache pages"
    )
    add_engine_flags(out)
    out.add_argument("--prompts", metavar="FILE", type=Path, required=True, help="a text a line, or .jsonl")
    out.add_argument("--out", metavar="PAGES", type=Path, required=True, help="the directory to write")
    out.add_argument("--max-tokens", type=positive, default=16, help="longest output, for the other side (%(default)s)")
    out.add_argument("--temperature", type=float, default=0.0, help="0, the default, takes the likeliest token")
    out.add_argument("--seed", type=int, default=0, help="of the random numbers (%(default)s)")
    out.set_defaults(handler=run_export)
    back: argparse.ArgumentParser = commands.add_parser(
        "kv-import", help="go on with exported requests from their cache pages"
    )
    back.add_argument("pages", metavar="PAGES", type=Path)
    add_engine_flags(back)
    back.set_defaults(handler=run_import)


def run_export(arguments: argparse.Namespace) -> int:
    """Run `tandem parity kv-export`."""
    params = SamplingParams(
        max_tokens=arguments.max_tokens, temperature=arguments.temperature, seed=arguments.seed
    )
    states = export_pages(engine_config(arguments), read_prompts(arguments.prompts), params, arguments.out)
    nbytes = sum(file.stat().st_size for file in arguments.out.iterdir())
    computed = [state.num_computed for state in states]
    if arguments.json:
        told = {"pages": str(arguments.out), "bytes": nbytes, "tokens_computed": computed}
        print(json.dumps(told))
    else:
        print(f"{arguments.out}: {len(states)} requests, {sum(computed)} tokens computed, {nbytes / 1e6:.2f} MB")
    return 0


def run_import(arguments: argparse.Namespace) -> int:
    """Run `tandem parity kv-import`."""
    trace = Trace.open(arguments.pages)
    outputs = import_pages(engine_config(arguments), trace)
    for output in outputs:
        if output.error is not None:
            raise output.error
    compared = compare_continued(trace, outputs)
    if arguments.json:
        told = [{"token_ids": list(o.token_ids), "text": o.text, "finish_reason": o.finish_reason} for o in outputs]
        there = [{"token_ids": list(c.one), "first_difference": c.first} for c in compared]
        print(json.dumps({"requests": told, "exporting_side": there}, ensure_ascii=False))
        return 0
    print("\n".join(output.text for output in outputs))
    for number, both in enumerate(compared):
        print(f"request {number}: {both.told()}")
    return 0

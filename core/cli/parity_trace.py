"""`tandem parity record` and `tandem parity replay`."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from tandem.cli.options import add_engine_flags, engine_config, positive
from tandem.contract.registry import open_backend
from tandem.parity.budget import parse_size
from tandem.parity.record import DEFAULT_BUDGET, read_prompts, record
from tandem.parity.records import Record
from tandem.parity.replay import MODES, replay
from tandem.parity.trace import Trace
from tandem.sampling.params import SamplingParams


def add_parsers(commands: Any) -> None:
    """Register both."""
    _add_record(commands)
    _add_replay(commands)


def _add_record(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser("record", help="run prompts and keep every op call")
    add_engine_flags(parser)
    parser.add_argument("--prompts", metavar="FILE", type=Path, required=True, help="a text a line, or .jsonl")
    parser.add_argument("--out", metavar="TRACE", type=Path, required=True, help="the directory to write")
    parser.add_argument(
        "--budget", metavar="SIZE", type=_size, default=DEFAULT_BUDGET, help="bytes it may take, as 64MB (the default)"
    )
    parser.add_argument("--max-tokens", type=positive, default=8, help="tokens drawn for each prompt (%(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0, the default, takes the likeliest token")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (%(default)s)")
    parser.set_defaults(handler=run_record)


def _add_replay(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser("replay", help="run a trace's op calls on another backend")
    parser.add_argument("trace", metavar="TRACE", type=Path)
    parser.add_argument("--backend", metavar="NAME[:INDEX]", help="overrides TANDEM_BACKEND")
    parser.add_argument(
        "--mode",
        choices=MODES,
        required=True,
        help="local: each call on its recorded inputs; free: on what earlier calls gave here",
    )
    parser.add_argument("--out", metavar="TRACE2", type=Path, required=True, help="the directory to write")
    parser.add_argument("--op", help="only calls of this op")
    parser.add_argument("--layer", type=int, metavar="N", help="only calls of this layer")
    parser.add_argument("--step", type=int, metavar="N", help="only calls of this step")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(handler=run_replay)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 64MB") from error


def run_record(arguments: argparse.Namespace) -> int:
    """Run `tandem parity record`."""
    params = SamplingParams(
        max_tokens=arguments.max_tokens, temperature=arguments.temperature, seed=arguments.seed
    )
    started = time.perf_counter()
    made = record(engine_config(arguments), read_prompts(arguments.prompts), params, arguments.out, arguments.budget)
    told = {
        "trace": str(arguments.out),
        "sha256": made.digest,
        "bytes": made.nbytes,
        "records": made.records,
        "left_out": made.left_out,
        "seconds": round(time.perf_counter() - started, 3),
        "texts": [output.text for output in made.outputs],
    }
    if arguments.json:
        print(json.dumps(told, ensure_ascii=False))
        return 0
    for text in (output.text for output in made.outputs):
        print(text)
    left = f", {made.left_out['records']} left out" if made.left_out["records"] else ""
    print(f"{arguments.out}: {made.records} calls{left}, {made.nbytes / 1e6:.1f} MB, {told['seconds']:.1f} s")
    return 0


def run_replay(arguments: argparse.Namespace) -> int:
    """Run `tandem parity replay`; 1 where a call could not run."""

    def chosen(record: Record) -> bool:
        wanted = ((arguments.op, record.op), (arguments.layer, record.layer), (arguments.step, record.step))
        return all(asked is None or asked == found for asked, found in wanted)

    trace = Trace.open(arguments.trace)
    backend = open_backend(arguments.backend, origin="--backend")
    started = time.perf_counter()
    try:
        counts = replay(trace, backend, arguments.mode, arguments.out, chosen)
    finally:
        backend.close()
    told = counts | {"trace": str(arguments.out), "seconds": round(time.perf_counter() - started, 3)}
    if arguments.json:
        print(json.dumps(told))
    else:
        anchored = counts["anchored"]
        print(
            f"{arguments.out}: {counts['records']} calls, {counts['errors']} could not run, {told['seconds']:.1f} s; "
            f"taken from the trace: {anchored['inputs']} inputs, {anchored['entries']} cache entries"
        )
    return 1 if counts["errors"] else 0

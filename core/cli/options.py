"""Flags that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from tandem.cli.structured import add_structured_flags, structured_of
from tandem.config import EngineConfig, load_config, parse_option
from tandem.contract.registry import parse_selector
from tandem.errors import ConfigError, RequestError
from tandem.sampling.params import SamplingParams


def positive(text: str) -> int:
    """argparse type: an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def integer(low: int, high: int) -> Callable[[str], int]:
    """argparse type: an integer from ``low`` to ``high``."""

    def integer(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not from {low} to {high}")
        return value

    return integer


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """--model, --backend, --batch-invariant, --config, --set, --draft-tokens, --json and --verbose."""
    parser.add_argument(
        "--model", metavar="DIR", help="checkpoint directory; default: the small model that comes with Tandem"
    )
    parser.add_argument("--backend", metavar="NAME[:INDEX]", help="overrides TANDEM_BACKEND")
    parser.add_argument(
        "--batch-invariant",
        action="store_true",
        help="only on a backend whose conformance run proves that no result depends on the batch",
    )
    parser.add_argument("--config", metavar="FILE", help="engine options as TOML or JSON")
    parser.add_argument(
        "--set",
        metavar="SECTION.FIELD=VALUE",
        action="append",
        default=[],
        help="one engine option, repeatable; an unknown name lists them",
    )
    parser.add_argument(
        "--draft-tokens", metavar="N", help="drafts verified a step, 0 for none: --set speculation.draft_tokens=N"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--verbose", action="store_true", help="tell more of what is chosen, on standard error")


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """The configuration the flags describe: file < environment < flags.

    Raises:
        ConfigError: an option is unknown or of a wrong type.
    """
    options: dict[str, Any] = {}
    for item in arguments.set:
        name, separator, value = item.partition("=")
        if not separator:
            raise ConfigError(
                "an engine option cannot be read",
                where=f"--set {item}",
                why="there is no '='",
                fix="write --set section.field=value, for example --set cache.block_size=64",
            )
        options[name] = parse_option(name, value)
    if arguments.draft_tokens is not None:
        options["speculation.draft_tokens"] = parse_option("speculation.draft_tokens", arguments.draft_tokens)
    if arguments.model is not None:
        options["model.path"] = arguments.model
    if arguments.backend:
        options["backend.name"], options["backend.device"] = parse_selector(arguments.backend, "--backend")
    if arguments.batch_invariant:
        options["backend.batch_invariant"] = "required"
    return load_config(arguments.config, args=options)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Sampling parameters; defaults are those of `SamplingParams`."""
    default = SamplingParams()
    parser.add_argument("--max-tokens", type=int, default=default.max_tokens, help="longest output (%(default)s)")
    parser.add_argument(
        "--temperature", type=float, default=default.temperature, help="0 takes the likeliest token (%(default)s)"
    )
    parser.add_argument("--top-p", type=float, default=default.top_p, help="(%(default)s)")
    parser.add_argument("--top-k", type=int, default=default.top_k, help="-1 keeps all (%(default)s)")
    parser.add_argument(
        "--min-p", type=float, default=default.min_p, help="keeps tokens at least so much as likely as the likeliest"
    )
    for name, effect in (
        ("repetition", "divides logits of tokens in prompt or output"),
        ("presence", "taken from logits of tokens in the output"),
        ("frequency", "the same, for each time they occur"),
    ):
        off = getattr(default, f"{name}_penalty")
        parser.add_argument(f"--{name}-penalty", type=float, default=off, metavar="X", help=f"{effect} (%(default)s)")
    parser.add_argument("--seed", type=int, help="the same seed gives the same text; default: a new one each run")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop string; repeatable")
    parser.add_argument(
        "--bad-word", action="append", default=[], metavar="TEXT", help="the output does not contain it; repeatable"
    )
    parser.add_argument(
        "--min-tokens", type=int, default=default.min_tokens, help="nothing ends the output before (%(default)s)"
    )
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="end with what there is after this time")
    parser.add_argument("--ignore-eos", action="store_true", help="go on after the model's end token")
    parser.add_argument("--logprobs", type=int, metavar="N", help="logprobs of each token and of the N likeliest")
    parser.add_argument("--processed-logprobs", action="store_true", help="also those of the law that was drawn from")
    add_structured_flags(parser)


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """SamplingParams of the flags.

    Raises:
        RequestError: a value is out of range, or a form of output cannot be used.
    """
    if arguments.processed_logprobs and arguments.logprobs is None:
        raise RequestError(
            "processed logprobs cannot be shown",
            where="--processed-logprobs",
            why="no logprobs are asked for",
            fix="add --logprobs 0, or more for the likeliest tokens too",
        )
    return SamplingParams(
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        max_tokens=arguments.max_tokens,
        seed=arguments.seed,
        stop=tuple(arguments.stop),
        ignore_eos=arguments.ignore_eos,
        logprobs=arguments.logprobs,
        processed_logprobs=arguments.processed_logprobs,
        min_p=arguments.min_p,
        repetition_penalty=arguments.repetition_penalty,
        presence_penalty=arguments.presence_penalty,
        frequency_penalty=arguments.frequency_penalty,
        bad_words=tuple(arguments.bad_word),
        min_tokens=arguments.min_tokens,
        deadline_s=arguments.deadline,
        structured=structured_of(arguments),
    )

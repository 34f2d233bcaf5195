"""`tandem`: the command line."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import warnings
from collections.abc import Sequence

from tandem.cli import autoload
from tandem.cli.notes import show_notes
from tandem.errors import CapacityError, TandemError

COMMANDS = ("generate", "chat", "doctor", "backends", "backend", "checkpoint", "bench", "conformance", "parity")
USAGE_ERROR = 2


def build_parser(command: str = "") -> argparse.ArgumentParser:
    """The parser with one command, or with all of them where the name is none.

    Only modules of the commands it has are imported: `tandem doctor` must run where torch cannot be imported.

    Raises:
        TandemError: a vendor package keeps torch from being imported.
    """
    parser = argparse.ArgumentParser(
        prog="tandem", description="Run DeepSeek-V4.1-class models on the backend named by TANDEM_BACKEND."
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in (command,) if command in COMMANDS else COMMANDS:
        try:
            module = importlib.import_module(f"tandem.cli.{name}")
        except RuntimeError as error:
            told = autoload.explain(error)
            if told is None:
                raise
            raise told from error
        module.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 when it did what was asked, 2 for bad input (the error is on standard error, as JSON after --json),
        130 when interrupted.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    warnings.showwarning = _show_warning
    _be_lenient_at_the_edges()
    try:
        arguments = build_parser(words[0] if words else "").parse_args(words)
        show_notes("--json" in words, getattr(arguments, "verbose", False))
        code: int = arguments.handler(arguments)
        return code
    except TandemError as error:
        return _report(error, "--json" in words)
    except MemoryError as error:
        return _report(_no_memory(words, error), "--json" in words)
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away; say nothing more
        return 0
    except KeyboardInterrupt:
        print("tandem: interrupted", file=sys.stderr)
        return 130


def _report(error: TandemError, as_json: bool) -> int:
    print(json.dumps(error.to_dict()) if as_json else f"tandem: {type(error).__name__}: {error}", file=sys.stderr)
    return USAGE_ERROR


def _no_memory(words: Sequence[str], error: MemoryError) -> CapacityError:
    return CapacityError(
        "the memory of this machine does not suffice",
        where=f"tandem {' '.join(words[:2])}",
        why=str(error) or type(error).__name__,
        fix="ask for smaller sizes",
    )


def _be_lenient_at_the_edges() -> None:
    """A terminal that cannot show a character gets it escaped; input bytes that are no text are refused as a prompt."""
    shown = "backslashreplace"
    for stream, errors in ((sys.stdout, shown), (sys.stderr, shown), (sys.stdin, "surrogateescape")):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=errors)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"tandem: {message}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())

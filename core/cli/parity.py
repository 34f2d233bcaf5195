"""`tandem parity`: record on one machine, replay on another, compare.

Each module `tandem.cli.parity_*` brings some of the subcommands, by its ``add_parsers``.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from typing import Any

import tandem.cli


def add_parser(subparsers: Any) -> None:
    """Register the command with all its subcommands."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "parity", help="compare backends that never share a machine, by traces of op calls"
    )
    commands = parser.add_subparsers(dest="parity_command", required=True, metavar="COMMAND")
    for module in sorted(pkgutil.iter_modules(tandem.cli.__path__), key=lambda found: found.name):
        if module.name.startswith("parity_"):
            importlib.import_module(f"tandem.cli.{module.name}").add_parsers(commands)

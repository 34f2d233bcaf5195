"""``tandem checkpoint``: make, inspect and list checkpoints."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from importlib import resources
from pathlib import Path

from tandem.checkpoint.inventory import TensorGroup, TensorSpec, tensor_inventory
from tandem.checkpoint.reader import Checkpoint
from tandem.checkpoint.tiny import make_tiny
from tandem.checkpoint.totals import InventoryTotals, inventory_totals
from tandem.errors import CheckpointError
from tandem.model.config import ModelConfig


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``checkpoint`` to the command line; handlers are in ``args.handler`` and return an exit code."""
    parser = subparsers.add_parser("checkpoint", help="make, inspect and list checkpoints")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    tiny = commands.add_parser("make-tiny", help="write a complete tiny checkpoint with random weights")
    tiny.add_argument("--seed", type=int, default=0, help="the same seed gives the same bytes (%(default)s)")
    tiny.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory to write")
    tiny.set_defaults(handler=_make_tiny)

    inspect = commands.add_parser("inspect", help="check a checkpoint and show what it holds")
    inspect.add_argument("directory", type=Path, metavar="DIR")
    inspect.add_argument("--json", action="store_true", help="machine-readable output")
    inspect.set_defaults(handler=_inspect)

    inventory = commands.add_parser("inventory", help="list the tensors that a configuration asks for")
    inventory.add_argument(
        "--config", type=Path, metavar="FILE", help="a config.json or its directory; default: the official one"
    )
    inventory.add_argument("--json", action="store_true", help="machine-readable output, every tensor")
    inventory.set_defaults(handler=_inventory)


def official_config() -> ModelConfig:
    """The configuration of DeepSeek-V4.1-Flash, which comes with the package."""
    with resources.as_file(resources.files("tandem") / "assets" / "official_config.json") as path:
        return ModelConfig.from_file(path)


def _make_tiny(args: argparse.Namespace) -> int:
    try:
        config = make_tiny(args.out, args.seed)
    except OSError as error:
        raise CheckpointError(
            "the checkpoint cannot be written",
            where=str(args.out),
            why=error.strerror or str(error),
            fix="give a directory that can be made or written",
        ) from error
    print(f"wrote {args.out}: {config.text.num_hidden_layers} layers, seed {args.seed}")
    return 0


def _inspect(args: argparse.Namespace) -> int:
    with Checkpoint.open(args.directory) as checkpoint:
        groups = sorted(group.value for group in checkpoint.validate())
        specs = [checkpoint.spec(name) for name in checkpoint.names()]
        totals = inventory_totals(checkpoint.config, specs)
    if args.json:
        print(json.dumps({"directory": str(args.directory), "groups": groups, "totals": asdict(totals)}))
        return 0
    runs = ", ".join(group for group in groups if group != TensorGroup.VISION.value)
    print(f"{args.directory}: complete ({', '.join(groups)}; this version runs {runs})\n")
    _print_rows(("part", "tensors", "bytes", "parameters"), _group_rows(specs))
    _print_totals(totals)
    return 0


def _inventory(args: argparse.Namespace) -> int:
    file = args.config / "config.json" if args.config and args.config.is_dir() else args.config
    config = ModelConfig.from_file(file) if file else official_config()
    specs = tensor_inventory(config)
    totals = inventory_totals(config, specs)
    if args.json:
        tensors = [
            {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype, "bytes": spec.nbytes}
            for spec in specs
        ]
        print(json.dumps({"tensors": tensors, "totals": asdict(totals)}))
        return 0
    _print_rows(("tensor", "shape", "dtype", "count", "bytes"), _pattern_rows(specs))
    _print_totals(totals)
    return 0


def _group_rows(specs: Iterable[TensorSpec]) -> list[tuple[str, ...]]:
    sums: dict[str, list[int]] = {}
    for spec in specs:
        part = "engram" if ".engram." in spec.name else spec.group.value
        row = sums.setdefault(part, [0, 0, 0])
        row[0] += 1
        row[1] += spec.nbytes
        row[2] += spec.params
    return [(part, *(f"{value:,}" for value in row)) for part, row in sums.items()]


def _pattern_rows(specs: Iterable[TensorSpec]) -> list[tuple[str, ...]]:
    """One row for tensors that differ in layer or expert number only."""
    counts: dict[tuple[str, str, str], list[int]] = {}
    for spec in specs:
        pattern = re.sub(r"\.\d+\.", ".*.", spec.name)
        row = counts.setdefault((pattern, "x".join(map(str, spec.shape)), spec.dtype), [0, 0])
        row[0] += 1
        row[1] += spec.nbytes
    return [(*key, f"{count:,}", f"{nbytes:,}") for key, (count, nbytes) in counts.items()]


def _print_rows(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        first, *rest = (text for text in row)
        cells = [f"{first:<{widths[0]}}"]
        cells += [f"{text:>{width}}" for text, width in zip(rest, widths[1:], strict=True)]
        print("  ".join(cells))
    print()


def _print_totals(totals: InventoryTotals) -> None:
    print(f"tensors              {totals.tensors:,}")
    print(f"bytes                {totals.nbytes:,}")
    for label, count in (
        ("backbone", totals.backbone),
        ("Engram tables", totals.engram_tables),
        ("Engram, all", totals.engram),
        ("DSpark", totals.dspark),
        ("vision", totals.vision),
        ("active, prompt token", totals.active_prefill),
        ("active, new token", totals.active_decode),
    ):
        print(f"{label:<20} {count:,} parameters ({_short(count)})")


def _short(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.4g}{unit}"
    return str(count)

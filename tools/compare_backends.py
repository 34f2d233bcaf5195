"""Backends side by side, op by op, from the files of a checkout.

    python -m tools.compare_backends [--write docs/BACKENDS.md]

Kinds, formats and labels are those of the committed capability tables, lines those of the sources; nothing is opened or
run.  A source file belongs to an op where its launcher says so (``OPS``) or where it is named after it.
"""

from __future__ import annotations

import argparse
import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import tandem.ops  # noqa: F401  (declares every op)
from tandem.contract.opspec import OP_TABLE
from tools.pages import replace

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = ("cpu", "cuda", "ascend")
FORMATS = ("x", "w", "fmt", "out")  # attributes of an op that name number formats
CODE = {".c", ".h", ".cpp", ".cu", ".cuh"}
# What an op is written as: where it has files of its own, and where it lies in the files below with others.
FORMS = {"cpu": ("C++", "torch"), "cuda": ("Triton", "CUTLASS")}
TOGETHER = {"cpu": ("ops.py",), "cuda": ("products*.py",), "ascend": ()}
# What an Ascend C kernel is, by the functions in its source and what that includes, and by products that come first.
ASCEND_FORMS = {
    "cube": r"__cube__|__mix__\(1|\bimport (\w+, )*(_products|linear)\b",
    "SIMT": "__simt_vf__",
    "registers": "__simd_vf__",
}


def lines_of(path: Path) -> int:
    """Lines that are not blank."""
    return sum(bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines())


def stem(op: str) -> str:
    """Name of the files of an op."""
    return op.replace(".", "_")


def owner(name: str) -> str | None:
    """The op that a source file is named after: the longest whose name it begins with."""
    fits = [op for op in OP_TABLE if name == stem(op) or name.startswith(stem(op) + "_")]
    return max(fits, key=len, default=None)


@dataclass
class Sources:
    """Source files of a backend.

    Args:
        name: of the backend.
    """

    name: str
    own: dict[str, list[Path]] = field(default_factory=dict)
    shared: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        package = ROOT / "backends" / self.name
        for path in sorted((package / "kernels").glob("*.py")):
            self._assign(path, launched(path))
        self.shared += [path for pattern in TOGETHER[self.name] for path in sorted(package.glob(pattern))]
        for path in sorted((ROOT / "csrc" / self.name).glob("*")):
            if path.suffix in CODE:
                found = owner(path.stem)
                self._assign(path, [found] if found else [])

    def _assign(self, path: Path, ops: list[str]) -> None:
        for op in ops:
            self.own.setdefault(op, []).append(path)
        if not ops and path.name != "__init__.py":
            self.shared.append(path)

    def form(self, op: str) -> str:
        """What an op is written as."""
        own = self.own.get(op, [])
        if self.name != "ascend":
            return FORMS[self.name][0 if own else 1]
        text = "".join(path.read_text(encoding="utf-8") for path in _with_included(own))
        return " + ".join(form for form, sign in ASCEND_FORMS.items() if re.search(sign, text)) or "copies"


def _with_included(paths: Iterable[Path]) -> Iterator[Path]:
    """Sources and the shared headers that they include."""
    todo, seen = list(paths), set[Path]()
    while todo:
        path = todo.pop()
        if path in seen or not path.exists():
            continue
        seen.add(path)
        yield path
        included = re.findall(r'^#include "(_\w+\.h)"', path.read_text(encoding="utf-8"), re.MULTILINE)
        todo += [path.parent / name for name in included]


def launched(path: Path) -> list[str]:
    """Ops that a launcher file lists."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == "OPS" and isinstance(node, ast.AnnAssign):
            keys = node.value.keys if isinstance(node.value, ast.Dict) else []
            return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    return []


@dataclass
class Column:
    """What is known of a backend.

    Args:
        name: of the backend.
    """

    name: str

    @cached_property
    def sources(self) -> Sources:
        """Its files."""
        return Sources(self.name)

    @cached_property
    def table(self) -> dict[str, Any] | None:
        """Its capability table; None where none was committed."""
        path = ROOT / "backends" / self.name / "capabilities.toml"
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def kind(self, op: str) -> str:
        """``fused`` with its form, ``composite``, or that nothing is known."""
        if self.table is None:
            return "no table"
        record = self.table["ops"].get(op)
        if record is None or record["impl"] != "native":
            return "-" if record is None else record["impl"]
        return ", ".join(filter(None, ("fused", self.sources.form(op))))

    def formats(self, op: str) -> str:
        """What the op is restricted to, where it is."""
        record = {} if self.table is None else self.table["ops"].get(op, {})
        allowed = record.get("allows", {})
        return "; ".join(f"{name}: {', '.join(allowed[name])}" for name in FORMATS if name in allowed)

    def lines(self, op: str) -> str:
        """Lines of the op's own files, file by file."""
        return " + ".join(str(lines_of(path)) for path in self.sources.own.get(op, ())) or "-"


def summary(columns: Iterable[Column]) -> Iterator[str]:
    """One row a backend."""
    yield "| backend | level | verification | run of | ops fused | ops as composites | formats | own files | shared |\n"
    yield "|" + "---|" * 9 + "\n"
    for column in columns:
        own = {path for paths in column.sources.own.values() for path in paths}
        counts = f"{sum(map(lines_of, own))} lines | {sum(map(lines_of, column.sources.shared))} lines"
        table = column.table
        if table is None:
            yield f"| {column.name} | no table | no table | - | - | - | - | {counts} |\n"
            continue
        kinds = [record["impl"] for record in table["ops"].values()]
        told = f"{table['level']} | {table['verification']} | {table['date']}"
        numbers = f"{kinds.count('native')} | {kinds.count('composite')} | {', '.join(table['formats'])}"
        yield f"| {column.name} | {told} | {numbers} | {counts} |\n"


def ops(columns: list[Column]) -> Iterator[str]:
    """One row an op."""
    yield f"| op | composite | {' | '.join(c.name for c in columns)} |"
    yield f" formats | {' | '.join(f'lines {c.name}' for c in columns)} |\n"
    yield "|" + "---|" * (3 + 2 * len(columns)) + "\n"
    for op in sorted(OP_TABLE):
        parts = ", ".join(f"`{part}`" for part in OP_TABLE[op].parts) or "plain torch"
        kinds = [column.kind(op) for column in columns]
        told = [(column.name, column.formats(op)) for column in columns]
        formats = "<br>".join(f"{name}: {text}" for name, text in told if text) or "all"
        cells = [f"`{op}`", parts, *kinds, formats, *(column.lines(op) for column in columns)]
        yield f"| {' | '.join(cells)} |\n"


def shared(columns: Iterable[Column]) -> Iterator[str]:
    """One row a file that several ops use."""
    yield "| backend | file | lines |\n|---|---|---|\n"
    for column in columns:
        for path in column.sources.shared:
            yield f"| {column.name} | `{path.relative_to(ROOT)}` | {lines_of(path)} |\n"


def page() -> str:
    """All tables."""
    columns = [Column(name) for name in BACKENDS]
    parts = ["".join(summary(columns)), "## Op by op\n\n" + "".join(ops(columns))]
    parts.append("## Files that several ops share\n\n" + "".join(shared(columns)))
    return "\n".join(parts)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Backends side by side, op by op.")
    parser.add_argument("--write", type=Path, help="write the tables between the marks of a page")
    arguments = parser.parse_args()
    if arguments.write:
        replace(arguments.write, "backends", page())
    else:
        print(page())


if __name__ == "__main__":
    main()

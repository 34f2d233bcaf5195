"""Write the generated parts of docs/CONTRACT.md: the op table and the backend surface.

``python -m tools.contract_docs`` rewrites them; with ``--check`` it writes nothing and exits 1 where the file is
stale.  A generated part stands between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->``.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import tandem.ops  # noqa: F401  (declares every op)
from tandem.contract.backend import Backend
from tandem.contract.opspec import OP_TABLE, OpSpec, iter_ops
from tandem.contract.surface import version_text

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "CONTRACT.md"


def stated_arguments(spec: OpSpec) -> str:
    """The ``Args: ... -> ...`` paragraph of an op file, on one line; empty where there is none."""
    module = sys.modules[spec.reference.__module__]
    found = re.search(r"^Args: (.*?)(?:\n\n|\Z)", inspect.cleandoc(module.__doc__ or ""), re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def argument_names(stated: str) -> list[str]:
    """Names before the arrow: each entry outside of brackets begins with its argument's name."""
    given = stated.partition(" -> ")[0]
    flat = re.sub(r"\([^()]*\)|\[[^\[\]]*(\[[^\]]*\])?[^\[\]]*\]", "", given)
    return [entry.split()[0] for entry in flat.split(",")]


def _classes(spec: OpSpec) -> str:
    distinct = set(spec.classes.values())
    if len(distinct) == 1:
        return distinct.pop()
    return ", ".join(f"{name} {kind}" for name, kind in spec.classes.items())


def op_table() -> str:
    """One row an op, by name."""
    lines = ["| op | arguments -> output | class | parts | since |", "|---|---|---|---|---|"]
    for spec in iter_ops():
        parts = " ".join(part for part in spec.parts if part in OP_TABLE)
        cells = (f"`{spec.name}`", stated_arguments(spec), _classes(spec), parts, version_text(spec.since))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def surface() -> str:
    """Attributes and methods of `Backend`, each with the first line of its docstring."""
    lines = ["```", "class Backend(ABC):"]
    members = {name: member for name, member in vars(Backend).items() if not name.startswith("_")}
    lines += [f"    {name}: {kind}" for name, kind in Backend.__annotations__.items()]
    for name, member in members.items():
        method = getattr(member, "fget", None) or getattr(member, "__func__", member)
        text = (inspect.getdoc(method) or "").splitlines()[0].replace("``", "").rstrip(".")
        kind = "(class method) " if isinstance(member, classmethod) else ""
        lines.append(f"    {_form(name, method, isinstance(member, property)):<50} # {kind}{text}")
    return "\n".join([*lines, "```"])


def _form(name: str, method: Callable[..., object], is_property: bool) -> str:
    signature = inspect.signature(method)
    result = str(signature.return_annotation)
    if is_property:
        return f"{name}: {result}"
    arguments = [p.name + ("?" if p.default is not p.empty else "") for p in list(signature.parameters.values())[1:]]
    return f"{name}({', '.join(arguments)})" + ("" if result == "None" else f" -> {result}")


PARTS: dict[str, Callable[[], str]] = {"op table": op_table, "surface": surface}


def rewritten(text: str, parts: Mapping[str, Callable[[], str]] = PARTS, document: str = "docs/CONTRACT.md") -> str:
    """``text`` with every generated part made anew.

    Raises:
        ValueError: the markers of a part are missing.
    """
    for name, make in parts.items():
        start, end = f"<!-- generated: {name} -->\n", f"\n<!-- end: {name} -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"{document} lacks the markers of '{name}'")
        text = before + start + make() + end + after
    return text


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the file is stale")
    check = parser.parse_args().check
    old = DOCUMENT.read_text(encoding="utf-8")
    new = rewritten(old)
    if old == new:
        return 0
    if check:
        print("docs/CONTRACT.md is stale: run python -m tools.contract_docs", file=sys.stderr)
        return 1
    DOCUMENT.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

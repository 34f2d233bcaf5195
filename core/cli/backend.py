"""`tandem backend new`: the start of a backend in a package of its own."""

from __future__ import annotations

import argparse
import json
import keyword
import re
import shlex
from pathlib import Path
from typing import Any

from tandem.contract.opspec import CONTRACT_VERSION
from tandem.contract.registry import collect
from tandem.contract.surface import version_text
from tandem.errors import ConfigError

TEMPLATES = Path(__file__).parents[1] / "assets" / "new_backend"
# Template -> where it goes; @PACKAGE@ is replaced there too.
FILES = {
    "pyproject.toml.in": "pyproject.toml",
    "README.md.in": "README.md",
    "init.py.in": "@PACKAGE@/__init__.py",
    "backend.py.in": "@PACKAGE@/backend.py",
    "ops.py.in": "@PACKAGE@/ops.py",
    "test_backend.py.in": "tests/test_@NAME@.py",
}


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("backend", help="start a backend of your own")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    new: argparse.ArgumentParser = actions.add_parser("new", help="write a package with a backend that runs at once")
    new.add_argument("name", metavar="NAME", help="as in TANDEM_BACKEND=NAME: lower case letters, digits, _")
    new.add_argument("--out", metavar="DIR", required=True, help="directory to write; empty, or made")
    new.add_argument("--json", action="store_true", help="machine-readable output")
    new.set_defaults(handler=run)


def generate(name: str, out: Path) -> list[Path]:
    """Write the package; the files written.

    Raises:
        ConfigError: the name cannot be used or is taken, or the directory holds something or cannot be written.
    """
    _check_name(name)
    words = {
        "NAME": name,
        "DASHED": name.replace("_", "-"),
        "PACKAGE": f"tandem_{name}",
        "CLASS": "".join(part.capitalize() for part in name.split("_")) + "Backend",
        "CONTRACT_TEXT": version_text(CONTRACT_VERSION),
        "CONTRACT": repr(CONTRACT_VERSION),
        "FOLDER": out.resolve().name,
    }
    written = []
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise _refuse(f"{out} exists and is not an empty directory", str(out), "name another directory")
        for template, target in FILES.items():
            path = out / _fill(target, words)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_fill((TEMPLATES / template).read_text(encoding="utf-8"), words), encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise _refuse(str(error), str(out), "name a directory that can be written") from error
    return written


def _check_name(name: str) -> None:
    registered = collect()[0]
    if keyword.iskeyword(name) or name == "auto":
        raise _refuse("the word has a meaning of its own", f"name '{name}'", "choose another name")
    if not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", name):
        fix = "use lower case letters, digits and _, with a letter first and no _ at the end"
        raise _refuse("it is no name of a backend", f"name '{name}'", fix)
    if name in registered:
        taken = registered[name]
        raise _refuse(f"{taken.target} of {taken.origin} has this name", f"name '{name}'", "choose another name")


def _refuse(why: str, where: str, fix: str) -> ConfigError:
    return ConfigError("the backend package was not written", where=where, why=why, fix=fix)


def _fill(text: str, words: dict[str, str]) -> str:
    return re.sub(r"@([A-Z_]+)@", lambda found: words[found[1]], text)


def run(arguments: argparse.Namespace) -> int:
    """Write the package and say how to go on."""
    out = Path(arguments.out)
    written = generate(arguments.name, out)
    if arguments.json:
        print(json.dumps({"name": arguments.name, "files": [str(path) for path in written]}))
        return 0
    for path in written:
        print(f"{path}  {len(path.read_text(encoding='utf-8').splitlines())} lines")
    place = str(out) if out.is_absolute() else f"./{out}"
    install, test = shlex.quote(f"{place}[test]"), shlex.quote(place)
    print(f"\npip install -e {install}\npytest {test}\nTANDEM_BACKEND={arguments.name} tandem generate Hello")
    return 0

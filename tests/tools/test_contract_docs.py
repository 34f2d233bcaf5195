"""The generated parts of docs/CONTRACT.md are fresh and state the ops as they are; its changelog is complete."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.contract.opspec import CONTRACT_VERSION, OP_TABLE, TABLE_HASHES, OpSpec
from tools import contract_docs


def test_the_document_is_fresh(repo_root: Path) -> None:
    text = (repo_root / "docs" / "CONTRACT.md").read_text(encoding="utf-8")
    assert contract_docs.rewritten(text) == text, "run python -m tools.contract_docs"


def test_a_stale_document_is_seen_and_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = contract_docs.DOCUMENT.read_text(encoding="utf-8")
    page = tmp_path / "CONTRACT.md"
    page.write_text(fresh.replace("`kv_load` | cache, slots", "`kv_load` | cache, rows"), encoding="utf-8")
    monkeypatch.setattr(contract_docs, "DOCUMENT", page)
    monkeypatch.setattr(sys, "argv", ["contract_docs", "--check"])
    assert contract_docs.main() == 1
    monkeypatch.setattr(sys, "argv", ["contract_docs"])
    assert contract_docs.main() == 0
    assert page.read_text(encoding="utf-8") == fresh
    with pytest.raises(ValueError, match="lacks the markers of 'surface'"):
        contract_docs.rewritten(fresh.replace("<!-- end: surface -->", ""))


def test_a_new_op_gets_a_row_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def reference(parts: object, x: object) -> None: ...

    spec = OpSpec("some_op", reference, {"y": "A", "z": "X"}, ("linear", "unpack_weight"), since=(1, 3))
    monkeypatch.setitem(OP_TABLE, "some_op", spec)
    assert "| `some_op` |  | y A, z X | linear | 1.3 |" in contract_docs.op_table().splitlines()


@pytest.mark.parametrize("name", sorted(OP_TABLE))
def test_an_op_file_states_the_arguments_in_order(name: str) -> None:
    stated = contract_docs.stated_arguments(OP_TABLE[name])
    wanted = [p for p in inspect.signature(OP_TABLE[name].reference).parameters if p != "parts"]
    assert contract_docs.argument_names(stated) == wanted
    result = stated.partition(" -> ")[2]
    assert result and "|" not in stated
    own = set(OP_TABLE[name].classes)
    written = sorted(own & set(wanted))
    assert not result.startswith("None") or written, "an op without a result writes an argument"


def test_argument_names_are_read_outside_of_brackets() -> None:
    stated = "x[T,H] bf16, w (a pair: first, end), y[T,ceil(S/b)] i32 or None, k -> z[T,k] f32"
    assert contract_docs.argument_names(stated) == ["x", "w", "y", "k"]


def entries(root: Path) -> dict[tuple[int, int], str]:
    """Version -> text of its entry, in the order of the file."""
    text = (root / "docs" / "CONTRACT_CHANGELOG.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (\d+)\.(\d+)\n", text, flags=re.MULTILINE)[1:]
    return {(int(a), int(b)): body for a, b, body in zip(parts[0::3], parts[1::3], parts[2::3], strict=True)}


def test_the_changelog_has_an_entry_for_each_version(repo_root: Path) -> None:
    found = entries(repo_root)
    assert list(found) == sorted(TABLE_HASHES, reverse=True) and next(iter(found)) == CONTRACT_VERSION
    for version, body in found.items():
        assert f"`{TABLE_HASHES[version]}`" in body and re.search(r"^Migration: \S", body, re.MULTILINE), version
    newest = re.search(r"(\d+) ops", found[CONTRACT_VERSION])
    assert newest is None or int(newest[1]) == len(OP_TABLE)


def test_no_op_is_newer_than_the_contract() -> None:
    assert all(spec.since in TABLE_HASHES for spec in OP_TABLE.values())


def test_it_runs_as_a_module(repo_root: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tools.contract_docs", "--check"], cwd=repo_root)
    assert done.returncode == 0

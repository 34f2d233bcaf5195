"""The op table against docs/CONTRACT.md, against its own files, and frozen per contract version."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest

import tandem.ops  # noqa: F401  (declares every op)
from tandem.contract.opspec import (
    CONTRACT_VERSION,
    OP_TABLE,
    TABLE_HASHES,
    OpSpec,
    case,
    op,
    table_signature,
    table_state,
)
from tandem.errors import ContractError

CLASS = r"(?:U\(\d\)|[XAQSP])"  # of an output


def stated_classes(text: str, outputs: list[str]) -> dict[str, str]:
    """'A', or 'x U(1), xq Q' with every output named -> class by output."""
    text = " ".join(text.split())
    one = re.match(rf"{CLASS}(?!\w)", text)
    return dict.fromkeys(outputs, one[0]) if one else dict(re.findall(rf"(\w+) ({CLASS})(?!\w)", text))


@pytest.fixture(scope="module")
def documented(repo_root: Path) -> list[list[str]]:
    """Cells of the op table in docs/CONTRACT.md, one list a row."""
    text = (repo_root / "docs" / "CONTRACT.md").read_text(encoding="utf-8")
    section = text.split("\n## 3 Ops")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    cells = [[cell.strip() for cell in row.removeprefix("|").removesuffix("|").split(" | ")] for row in rows]
    assert all(re.fullmatch(r"`[^`]+`", row[0]) and len(row) == 5 for row in cells), "one op a row, five cells"
    return [[row[0].strip("`"), *row[1:]] for row in cells]


def test_the_op_table_is_frozen() -> None:
    assert CONTRACT_VERSION in TABLE_HASHES, "a new contract version needs its hash"
    found = table_signature()
    assert found == TABLE_HASHES[CONTRACT_VERSION], (
        f"the op table of contract {CONTRACT_VERSION} changed (now {found}); "
        "raise CONTRACT_VERSION and record the new hash, or undo the change"
    )
    assert table_state() == "frozen"


def test_a_changed_table_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OP_TABLE, "some_op", OpSpec("some_op", lambda x: x, {"y": "X"}))
    assert table_state() == f"changed: {table_signature()[:12]}, frozen as {TABLE_HASHES[CONTRACT_VERSION][:12]}"
    monkeypatch.setitem(TABLE_HASHES, CONTRACT_VERSION, table_signature())
    assert table_state() == "frozen"
    monkeypatch.delitem(TABLE_HASHES, CONTRACT_VERSION)
    assert table_state().endswith("frozen as none")


def test_the_signature_sees_arguments_attributes_and_classes() -> None:
    def reference(parts: object, x: object, k: int) -> None: ...

    spec = OpSpec("some_op", reference, {"y": "A", "w": "X"}, ("linear",), ("dim",))
    assert spec.signature() == "some_op(x,k)[dim]->w:X,y:A"


def test_the_document_lists_every_op_once(documented: list[list[str]]) -> None:
    assert sorted(cells[0] for cells in documented) == sorted(OP_TABLE)


def test_documented_classes_are_the_classes(documented: list[list[str]]) -> None:
    for name, _, classes, _, _ in documented:
        spec = OP_TABLE[name]
        assert stated_classes(classes, list(spec.classes)) == spec.classes, name


def test_documented_parts_are_the_parts(documented: list[list[str]]) -> None:
    for name, *_, parts, _ in documented:
        assert set(parts.split()) == set(OP_TABLE[name].parts) & set(OP_TABLE), name


def test_stated_classes_are_read_by_output() -> None:
    assert stated_classes("U(4)", ["a", "b"]) == {"a": "U(4)", "b": "U(4)"}
    assert stated_classes("A before the\nquantisation.", ["q"]) == {"q": "A"}
    assert stated_classes("x U(1), xq Q,\nmix A.", ["x"]) == {"x": "U(1)", "xq": "Q", "mix": "A"}


@pytest.mark.parametrize("name", sorted(OP_TABLE))
def test_an_op_file_states_its_classes_and_has_a_case(name: str) -> None:
    spec = OP_TABLE[name]
    module = sys.modules[spec.reference.__module__]
    text = module.__doc__ or ""
    assert text.startswith(f"`{name}`: "), "the docstring begins with the op's name"
    stated = re.search(r"\bClass(?:es:)?\s+((?s:.*))", text)
    assert stated, "the docstring states the op's classes"
    assert stated_classes(re.split(r"\.\s", stated[1])[0], list(spec.classes)) == spec.classes
    assert spec.cases, "an op has at least one conformance case"
    assert len({c.name for c in spec.cases}) == len(spec.cases), "case names are distinct"
    assert module.__name__ == f"tandem.ops.{name.replace('.', '_')}", "one op a file, named like the op"


@pytest.mark.parametrize("name", sorted(OP_TABLE))
def test_parts_and_classes_are_known(name: str) -> None:
    spec = OP_TABLE[name]
    methods = {"unpack_weight", "to_canonical", "from_canonical"}
    assert set(spec.parts) <= set(OP_TABLE) | methods
    assert set(spec.classes.values()) <= {"X", "A", "Q", "S", "P", "U(1)", "U(4)"}
    takes_parts = "parts" in inspect.signature(spec.reference).parameters
    assert takes_parts == bool(spec.parts)


def test_cases_are_made_from_the_seed_alone() -> None:
    builders = [c.build for spec in OP_TABLE.values() for c in spec.cases]
    assert all(set(build(3)) == set(build(4)) for build in builders)


def test_declaring_an_op_twice_is_an_error() -> None:
    with pytest.raises(ContractError, match="op 'linear' is declared twice"):
        op("linear", classes={"y": "A"})(lambda x: x)


def test_a_case_with_rows_makes_one_case_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = OpSpec("some_op", lambda x: x, {"y": "X"})
    monkeypatch.setitem(OP_TABLE, "some_op", spec)

    @case("some_op", "sized", (1, 5))
    def build(seed: int, rows: int) -> dict[str, object]:
        return {"x": (seed, rows)}

    assert [(c.name, c.build(9)) for c in spec.cases] == [("sized-T1", {"x": (9, 1)}), ("sized-T5", {"x": (9, 5)})]

"""The capability tables that emulated conformance runs wrote, against the backends as they are."""

from __future__ import annotations

import tomllib

import pytest
from support.ascend_emulated import opened

from tandem.conformance.emit import static_part
from tandem.contract.registry import open_backend
from tandem.contract.standing import TABLE_FILE, package_folder, standing


@pytest.mark.parametrize(("name", "level"), [("cuda", "L1"), ("ascend", "L2")])
def test_the_table_is_up_to_date(name: str, level: str) -> None:
    """If this fails: TANDEM_EMULATE=1 tandem conformance --backend NAME --level LEVEL --emit, to the file."""
    backend = opened() if name == "ascend" else open_backend(name)
    table = tomllib.loads((package_folder(type(backend)) / TABLE_FILE).read_text(encoding="utf-8"))
    fixed = static_part(backend)
    kept = {key: table[key] for key in fixed if key != "ops"}
    kept["ops"] = {op: {k: v for k, v in record.items() if k != "worst"} for op, record in table["ops"].items()}
    assert kept == fixed
    assert standing(type(backend)).level == table["level"] == level

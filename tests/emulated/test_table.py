"""The capability table that an emulated conformance run wrote, against the backend as it is."""

from __future__ import annotations

import tomllib

from tandem.backends.cuda.backend import CudaBackend
from tandem.conformance.emit import static_part
from tandem.contract.registry import open_backend
from tandem.contract.standing import TABLE_FILE, package_folder, standing


def test_the_table_is_up_to_date() -> None:
    """If this fails: TANDEM_EMULATE=1 tandem conformance --backend cuda --level L1 --emit, to the file."""
    table = tomllib.loads((package_folder(CudaBackend) / TABLE_FILE).read_text(encoding="utf-8"))
    fixed = static_part(open_backend("cuda"))
    kept = {key: table[key] for key in fixed if key != "ops"}
    kept["ops"] = {op: {k: v for k, v in record.items() if k != "worst"} for op, record in table["ops"].items()}
    assert kept == fixed
    assert standing(CudaBackend).level == table["level"] == "L1"

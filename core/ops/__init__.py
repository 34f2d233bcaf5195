"""One op per file: declaration, plain-torch reference, conformance cases.

Importing this package declares every op in `tandem.contract.opspec.OP_TABLE`.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

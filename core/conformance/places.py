"""Where a backend's own files lie."""

from __future__ import annotations

import sys
from pathlib import Path


def package_folder(backend: type) -> Path:
    """The folder of the module that defines a backend class: its package."""
    module = sys.modules[backend.__module__]
    return Path(module.__file__ or ".").resolve().parent

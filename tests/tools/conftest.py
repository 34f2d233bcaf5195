"""Puts the repository root on the path: the training tools are the package ``tools`` there."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

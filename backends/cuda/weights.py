"""How weights are laid out for SM100's matrix products: codes row-major, scales as `scales.py` says.

The Engram table stays on the host, pinned for the device.
"""

from __future__ import annotations

from tandem.accelerator.layouts import Matrices, Scaled
from tandem.backends.cuda import scales

_OWN = Matrices("cuda", "cuda.sf128x4", scales)
PLAIN, SCALED, HOST = _OWN.plain, _OWN.scaled, _OWN.host
pack = _OWN.pack
unpack = _OWN.unpack
unreadable = _OWN.unreadable

__all__ = ["HOST", "PLAIN", "SCALED", "Scaled", "pack", "unpack", "unreadable"]

"""The private layout of mxfp8 activations: codes row-major, scales as SM100's matrix products read them."""

from __future__ import annotations

from tandem.accelerator.layouts import Activations
from tandem.backends.cuda import scales

_OWN = Activations("cuda", "cuda.sf128x4", scales)
LAYOUT = _OWN.layout  # data: uint8 [T, N]; scale: uint8 [packed bytes], see scales.py
empty = _OWN.empty
quantised = _OWN.quantised
check_operand = _OWN.check_operand
to_canonical = _OWN.to_canonical
from_canonical = _OWN.from_canonical

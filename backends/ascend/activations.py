"""The private layout of mxfp8 activations: codes and scales row-major, scales in even numbers as `scales.py` says."""

from __future__ import annotations

from tandem.accelerator.layouts import Activations
from tandem.backends.ascend import scales

_OWN = Activations("ascend", "ascend.pairs.rows", scales)
LAYOUT = _OWN.layout  # data: uint8 [T, N]; scale: uint8 [T, N / 32, filled up to an even number]
empty = _OWN.empty
quantised = _OWN.quantised
check_operand = _OWN.check_operand
to_canonical = _OWN.to_canonical
from_canonical = _OWN.from_canonical

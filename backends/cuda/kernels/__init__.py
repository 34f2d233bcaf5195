"""Triton kernels, one file per op.

A file defines its jitted kernels and a launcher with the arguments of the op, and lists what it brings in ``OPS``.
"""

from tandem.backends.cuda.emulation import prepare

prepare()

"""Launchers of the native kernels, one file an op.

A file has ``OPS``: op name to the function that implements it.  It makes the outputs and passes them to the entry of
csrc/cpu/ops with the same name.  A launcher reads no values of arrays, because in a recorded step there are none yet.
Files whose names begin with ``_`` hold what several launchers share.
"""

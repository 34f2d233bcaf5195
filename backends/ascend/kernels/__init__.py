"""Launchers of the Ascend C kernels, one file per op.

A file checks the arguments of its op, allocates the outputs and calls the entry of ``csrc/ascend/<op>.cpp`` through
`tandem.backends.ascend.native.run`.  It lists what it brings in ``OPS``, what its launches move and how they fill the
cores in ``PLAN`` (see `tandem.backends.ascend.plan`), and in ``WHY`` the reason where that is more than 1.3 times the
least an op can move.
"""

"""The CPU backend beside the limits of the machine and beside what else runs there: ``python -m benchmarks.cpu``."""

"""Tools of the repository, run from its root; no part of the package."""

"""torch's automatic loading of vendor packages, diagnosed without importing torch.

`import torch` loads every entry point of the group ``torch.backends``.  One that fails makes torch itself fail to
import, and with it everything else, although the backend that was asked for may not need that vendor at all.
"""

from __future__ import annotations

import importlib.metadata
import os
import re

from tandem.errors import BackendLoadError, TandemError

GROUP = "torch.backends"
SWITCH = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_NAMED = re.compile(r"Failed to load the backend extension: (.+?)\. You can disable")


def entries() -> dict[str, str]:
    """Vendor packages that torch loads by itself: entry point name -> ``module:function of package version``."""
    found = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        origin = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
        found[entry.name] = f"{entry.value}{origin}"
    return found


def enabled() -> bool:
    """Whether torch would load them now."""
    return os.environ.get(SWITCH, "1") == "1"


def explain(error: BaseException) -> TandemError | None:
    """The diagnosis of an exception that importing torch raised; None if automatic loading is not its cause."""
    found = _NAMED.search(str(error))
    cause = error.__cause__ or error
    return diagnosis(found[1], f"{type(cause).__name__}: {cause}") if found else None


def diagnosis(name: str, cause: str) -> TandemError:
    """The error that names a vendor package, why it failed and how to do without it.

    Args:
        name: of the entry point; empty where it is not known which one failed.
        cause: what it raised, or how the process ended.
    """
    known = {n: told for n, told in entries().items() if n == name or not name}
    return BackendLoadError(
        "torch cannot be imported because a vendor package that it loads automatically fails",
        where="; ".join(f"entry point {GROUP}: {n} = {told}" for n, told in known.items()) or f"entry point {name}",
        why=cause,
        fix=f"set {SWITCH}=0 to run without the package, or repair or uninstall it",
    )

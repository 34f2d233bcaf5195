"""Which checks or golden cases a filter means."""

from __future__ import annotations

from collections.abc import Iterable


def selected(names: Iterable[str], part: str) -> frozenset[str]:
    """The names that a filter selects; empty where it fits none.

    A whole name selects that one alone.  A filter that begins with a whole op and a slash, as ``linear/``, selects the
    names that begin with it, so no ``group_linear``.  Any other selects the names that contain it.
    """
    every = frozenset(names)
    if part in every:
        return frozenset({part})
    begin = frozenset(name for name in every if "/" in part and name.startswith(part))
    return begin or frozenset(name for name in every if part in name)

"""Image spans: runs of roles other than 0, which a chunk never cuts.

The tokens of an image are embedded and routed as one; a chunk boundary inside it would need the rest of the
image to be kept for the next step.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Roles = npt.NDArray[np.uint8]


def leading_span(roles: Roles) -> int:
    """Length of the run of roles other than 0 at the start."""
    text = np.flatnonzero(roles == 0)
    return int(text[0]) if text.size else len(roles)


def longest_span(roles: Roles) -> int:
    """Length of the longest run of roles other than 0."""
    text = np.flatnonzero(np.concatenate(([0], roles, [0])) == 0)
    return int(np.diff(text).max()) - 1


def whole_spans(roles: Roles, rows: int, most: int) -> int:
    """The chunk length nearest to ``rows`` that cuts no image span.

    Args:
        roles: uint8 [n], roles from the first row of the chunk on; a span never begins before it.
        rows: length wanted, 1 <= rows <= n.
        most: length that must not be exceeded.

    Returns:
        ``rows`` if no span is cut there; else the start of the cut span; else, when that is the first row,
        its end, or 0 if the span is longer than ``most``.
    """
    if rows == len(roles) or roles[rows] == 0 or roles[rows - 1] == 0:
        return rows
    text = np.flatnonzero(roles[:rows] == 0)
    if text.size:
        return int(text[-1]) + 1
    span = leading_span(roles)
    return span if span <= most else 0

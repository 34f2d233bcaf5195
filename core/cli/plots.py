"""Drawings of what was measured, by matplotlib, which is asked for only here."""

from __future__ import annotations

from typing import Any

from tandem.errors import ConfigError


def new_figure() -> Any:
    """An empty figure.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise _undrawn(str(error), "pip install matplotlib, or leave it out") from error
    return Figure(figsize=(7, 4))


def save(figure: Any, file: str) -> None:
    """Write a figure in the format that the file's suffix names.

    Raises:
        ConfigError: there is no such folder or format.
    """
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise _undrawn(str(error), "name a file in a folder that exists, for example speed.png") from error


def _undrawn(why: str, fix: str) -> ConfigError:
    return ConfigError("the plot cannot be drawn", where="--plot", why=why, fix=fix)

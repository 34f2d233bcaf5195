"""Device indices: logical, counted within what the vendor's visibility variable leaves."""

from __future__ import annotations

from tandem.contract.environment import BACKEND
from tandem.errors import DeviceIndexError


def check_index(name: str, index: int, count: int, visible: str) -> None:
    """Refuse a device that does not exist.

    Args:
        name: of the backend.
        index: that was asked for.
        count: devices that are visible.
        visible: what decides about visibility, such as ``VARIABLE=1,3``; the variable is read and never written.
    Raises:
        DeviceIndexError: ``index`` is not below ``count``.
    """
    if 0 <= index < count:
        return
    devices = "1 device is visible" if count == 1 else f"{count} devices are visible"
    logical = {0: "none", 1: "logical 0"}.get(count, f"logical 0..{count - 1}")
    usable = {0: f"another backend than {name}", 1: f"{name}:0"}.get(count, f"{name}:0 to {name}:{count - 1}")
    raise DeviceIndexError(
        f"{BACKEND}='{name}:{index}' but {devices}",
        where=f"backend '{name}'",
        why=f"{visible} -> {logical}",
        fix=f"use {usable}",
    )

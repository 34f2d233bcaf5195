"""What crosses a backend's boundary comes back bit by bit: level L0 on every implementation."""

from __future__ import annotations

import pytest
from support.runner import implementations, plan_of

from tandem.conformance.boot import checks
from tandem.contract.types import CacheKind, KVLayout, QFormat

BOOT = [pytest.param(check, id=f"{part}-{case}") for part, case, check in checks()]


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize("check", BOOT)
def test_boot(check: object, implementation: str) -> None:
    check(plan_of(implementation).backend)


def test_bytes_per_entry_at_official_dimensions() -> None:
    """e2m1 halves a byte and shares a scale byte over 16 or 32 channels; e4m3 takes a byte and shares over 32."""
    sizes = {
        KVLayout(CacheKind.MAIN, QFormat.NVFP4, 512, 128).entry_bytes: 512 // 2 + 512 // 16,
        KVLayout(CacheKind.INDEX, QFormat.MXFP4, 128, 128).entry_bytes: 128 // 2 + 128 // 32,
        KVLayout(CacheKind.WINDOW, QFormat.MXFP8, 512, 64).entry_bytes: 512 + 512 // 32,
    }
    assert all(have == want for have, want in sizes.items()) and set(sizes) == {288, 68, 528}

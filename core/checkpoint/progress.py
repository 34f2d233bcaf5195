"""A progress bar for loading weights."""

from __future__ import annotations

from types import TracebackType

from tqdm import tqdm


class LoadProgress:
    """Shows loaded bytes on standard error.

    Args:
        total_bytes: bytes that will be loaded.
        show: True or False to force it; None shows it on a terminal only.
    """

    def __init__(self, total_bytes: int, show: bool | None = None) -> None:
        # tqdm takes None for "disabled unless standard error is a terminal"
        disable = None if show is None else not show
        self._bar = tqdm(
            total=total_bytes, desc="loading", unit="B", unit_scale=True, unit_divisor=1024, disable=disable
        )

    def advance(self, nbytes: int, module: str = "") -> None:
        """Count ``nbytes`` as loaded; ``module`` is shown beside the bar."""
        self._bar.set_postfix_str(module, refresh=False)
        self._bar.update(nbytes)

    def __enter__(self) -> LoadProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

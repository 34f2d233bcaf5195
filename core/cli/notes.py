"""What the library notes while a command runs, as single lines on standard error."""

from __future__ import annotations

import json
import logging
import sys


class _Notes(logging.Handler):
    """Prints records; those that tell of something nobody asked about only on request."""

    def __init__(self, as_json: bool, verbose: bool) -> None:
        super().__init__(logging.INFO if verbose else logging.WARNING)
        self._as_json, self._verbose = as_json, verbose

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record; `unasked` ones (see `tandem.engine.prefix_plan`) need --verbose."""
        if getattr(record, "unasked", False) and not self._verbose:
            return
        text = record.getMessage()
        print(json.dumps({"note": text}) if self._as_json else f"note: {text}", file=sys.stderr)


def show_notes(as_json: bool, verbose: bool) -> None:
    """Print what the logger "tandem" gets from here on: warnings, with `verbose` all from level INFO on.

    A line begins with ``note:``, or is a JSON object with `note`.  Calling it again replaces the handler.
    """
    logger = logging.getLogger("tandem")
    for handler in list(logger.handlers):
        if isinstance(handler, _Notes):
            logger.removeHandler(handler)
    logger.addHandler(_Notes(as_json, verbose))
    logger.setLevel(logging.INFO if verbose else logging.NOTSET)

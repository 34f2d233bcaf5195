"""The small model that comes with the package; it runs where no model is named."""

from __future__ import annotations

from pathlib import Path

from tandem.checkpoint.inventory import INDEX_NAME
from tandem.errors import CheckpointError

SHIPPED = Path(__file__).resolve().parent.parent / "assets" / "nano"
_NEEDED = ("config.json", "tokenizer.json", INDEX_NAME)


def shipped_model() -> Path:
    """Its checkpoint directory.

    Raises:
        CheckpointError: the installation lacks one of its files.  Shards are looked for when it is opened.
    """
    for name in _NEEDED:
        if not (SHIPPED / name).is_file():
            raise CheckpointError(
                "the small model that comes with Tandem is not in this installation",
                where=str(SHIPPED / name),
                why="the file does not exist",
                fix="install Tandem again from a complete wheel or source tree, or name a checkpoint by --model or "
                "model.path",
            )
    return SHIPPED

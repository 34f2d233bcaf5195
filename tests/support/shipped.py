"""Text for the model that comes with the package, as ids of its own tokenizer."""

from __future__ import annotations

from functools import cache

from tandem.checkpoint.shipped import shipped_model
from tandem.tokenizer.tokenizer import Tokenizer

TEXT = (
    "In the third year there was no rain in the land, and the springs of the valley failed. The people came to the "
    "elders at the gate of the city, and said, “Our wells are dry, and our flocks die in the field. What shall we "
    "do?” The oldest of them answered, “My father told me of a well behind the hill, which his fathers dug, and the "
    "stones lie on it to this day.” So they went out in the morning, men and women and children, and took away the "
    "stones one by one. On the seventh day they heard water. They drank, and they gave to their cattle, and they "
    "named the place Remembrance, because an old man had not forgotten it. Then they built a wall around the well."
)


@cache
def tokenizer() -> Tokenizer:
    """The shipped model's."""
    return Tokenizer.load(shipped_model())


def text_ids(count: int, start: int = 0) -> list[int]:
    """Ids of the text from the token ``start`` on; 0 is the begin token."""
    ids = tokenizer().encode(TEXT)
    if len(ids) < start + count:
        raise ValueError(f"the text has {len(ids)} tokens; {start + count} are asked for")
    return ids[start : start + count]

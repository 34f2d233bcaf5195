"""What launches of the emulated Ascend library touch, as csrc/ascend/emulation/counts.h counts it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import cffi

from tandem.backends.ascend import native

KINDS = ("vector", "cube", "mixed")
ROOM = 64
CDEF = """
typedef struct tandem_ascend_counts {
  int32_t mixed;
  int32_t blocks;
  int64_t read, distinct_read;
  int64_t written, distinct_written;
  int64_t ub, l1;
} tandem_ascend_counts;
void tandem_ascend_count(int32_t on);
int32_t tandem_ascend_counted(tandem_ascend_counts *counts, int32_t room);
"""


@dataclass(frozen=True)
class Counts:
    """One launch; the fields are those of the struct."""

    kind: str
    blocks: int
    read: int
    distinct_read: int
    written: int
    distinct_written: int
    ub: int
    l1: int


@contextmanager
def counted() -> Iterator[list[Counts]]:
    """The launches within, there when it ends."""
    ffi = cffi.FFI()
    ffi.cdef(CDEF)
    library = ffi.dlopen(str(native.library().path))
    found: list[Counts] = []
    library.tandem_ascend_count(1)
    try:
        yield found
    finally:
        library.tandem_ascend_count(0)
        counts = ffi.new("tandem_ascend_counts[]", ROOM)
        number = library.tandem_ascend_counted(counts, ROOM)
        if number > ROOM:
            raise RuntimeError(f"{number} launches, there is room for {ROOM}")
        names = [name for name, _ in ffi.typeof("tandem_ascend_counts").fields][1:]
        for one in counts[0:number]:
            found.append(Counts(KINDS[one.mixed], *(int(getattr(one, name)) for name in names)))

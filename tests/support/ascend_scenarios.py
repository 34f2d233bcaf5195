"""The library of planted faults in tests/ascend/emulation, called through cffi."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import cffi
import torch

from tools import build_ascend

HERE = Path(__file__).resolve().parent.parent / "ascend" / "emulation"
LIBRARY = build_ascend.EMULATED_BUILD / "tests" / "libtandem_emulation_tests.so"
LINE = re.compile(r'^SCENARIO\(.*, (\w+), "([\w-]+)"\)', re.MULTILINE)
DECLARATIONS = """
int32_t run_scenario(const char *name, const float *x, float *y, int32_t fixed);
double decode_number(int32_t format, uint32_t code);
uint32_t encode_number(int32_t format, double value, int32_t rounding, int32_t saturate);
uint32_t store_bfloat16(float value);
float load_bfloat16(uint32_t bits);
int32_t register_case(const char *name, const uint8_t *in, int64_t in_bytes, uint8_t *out, int64_t out_bytes,
                      int32_t per_instruction);
int32_t simt_warp(const int32_t *in, int32_t *out);
int32_t simt_block(const int32_t *in, int32_t *out);
int32_t simt_block_unannounced(const int32_t *in, int32_t *out);
int32_t simt_barriers(int32_t *out, int32_t times);
int32_t simt_triple(const int32_t *in, int32_t *out, int32_t count);
"""


def scenarios() -> list[tuple[str, str]]:
    """Name and expected fault of every scenario, as the sources state them."""
    found = [LINE.findall(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("*.cpp"))]
    return [pair for pairs in found for pair in pairs]


class Emulation:
    """The library with its own declarations and those of the tests."""

    def __init__(self) -> None:
        path = build_ascend.build_emulated(sorted(HERE.glob("*.cpp")), LIBRARY, kernels=False)
        self.ffi = cffi.FFI()
        self.ffi.cdef("const char *tandem_ascend_declarations(void);")
        text = self.ffi.dlopen(str(path)).tandem_ascend_declarations()
        self.ffi = cffi.FFI()
        self.ffi.cdef(self.ffi.string(text).decode() + DECLARATIONS)
        self.lib: Any = self.ffi.dlopen(str(path))

    def last_fault(self) -> str:
        """ "name: text" of the last fault."""
        text: bytes = self.ffi.string(self.lib.tandem_ascend_last_fault())
        return text.decode()

    def run(self, name: str, fixed: bool) -> tuple[int, str]:
        """Status of a scenario, and the fault where it has one."""
        x, y = torch.arange(4096, dtype=torch.float32), torch.zeros(4096)
        for tensor in (x, y):
            self.lib.tandem_ascend_register(self.ffi.cast("void *", tensor.data_ptr()), 4 * tensor.numel())
        pointers = [self.ffi.cast("float *", tensor.data_ptr()) for tensor in (x, y)]
        status = int(self.lib.run_scenario(name.encode(), *pointers, int(fixed)))
        self.lib.tandem_ascend_forget_all()
        return status, self.last_fault() if status else ""


@functools.cache
def emulation() -> Emulation:
    """Built and opened once a process."""
    return Emulation()

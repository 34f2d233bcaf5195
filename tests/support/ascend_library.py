"""Kernel libraries of two entries, built with the machine's C compiler, that tell what they were called with."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HEADER = Path(__file__).resolve().parents[2] / "csrc" / "include" / "tandem_ascend.h"
ENTRIES = """
/* tandem_ascend_tell(const tandem_ascend_device *device, void *stream): a comment that looks like an entry. */
int32_t tandem_ascend_tell(const tandem_ascend_device *device, void *stream, const uint16_t *x,
                           const float *weight, int32_t *out, int64_t rows, int32_t width, float eps);
int32_t tandem_ascend_end_with(const tandem_ascend_device *device, void *stream, int32_t status);
int32_t tandem_ascend_take(const tandem_ascend_device *device, void *stream, const void *any);
"""
BODY = """
#include <stdint.h>
@DECLARED@
static int held = 0, facts = 0;
int32_t tandem_ascend_device_facts(tandem_ascend_device *d) {
  facts += 1;
  d->cube_cores = 36; d->vector_cores = 72; d->ub_bytes = 253952; d->l1_bytes = 524288;
  d->l0a_bytes = d->l0b_bytes = 65536; d->l0c_bytes = 262144;
  return TANDEM_OK;
}
const char *tandem_ascend_status_string(int32_t s) { return s == TANDEM_BAD_VALUE ? "a bad value" : "something"; }
const char *tandem_ascend_declarations(void) { return @TEXT@; }
int32_t tandem_ascend_emulated(void) { return @EMULATED@; }
const char *tandem_ascend_last_fault(void) { return "ub-overflow: tell took too much: 12 of 8"; }
int32_t tandem_ascend_register(const void *p, int64_t n) { held += p != 0 && n > 0; return TANDEM_OK; }
int32_t tandem_ascend_unregister(const void *p, int64_t n) { return p == 0 || n == 0; }
void tandem_ascend_forget_all(void) { held = 0; }
int32_t tandem_ascend_tell(const tandem_ascend_device *d, void *stream, const uint16_t *x, const float *weight,
                           int32_t *out, int64_t rows, int32_t width, float eps) {
  if (out == 0) return (int32_t)(intptr_t)stream == 77 && d->cube_cores == 36 && facts == 1 ? TANDEM_OK : 9;
  int32_t told[] = {d->vector_cores, (int32_t)(intptr_t)stream, x[1], weight != 0, (int32_t)rows, width,
                    (int32_t)(eps * 1000), held, facts};
  for (int i = 0; i < 9; ++i) out[i] = told[i];
  return TANDEM_OK;
}
int32_t tandem_ascend_end_with(const tandem_ascend_device *d, void *stream, int32_t status) {
  return d && !stream ? status : TANDEM_OK;
}
int32_t tandem_ascend_take(const tandem_ascend_device *d, void *stream, const void *any) { return d && any == stream; }
"""


def declarations(header: str) -> str:
    """What cffi reads of a header: lines of the preprocessor left out."""
    plain = "\n".join(line for line in header.splitlines() if not line.startswith("#"))
    return re.sub(r"\bTANDEM_API\s+", "", plain) + ENTRIES


def build(path: Path, emulated: bool, text: str | None = None) -> Path:
    """Compile a library; ``text`` is what it says of its entries.  Skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    declared = declarations(HEADER.read_text(encoding="utf-8"))
    words = {
        "DECLARED": declared,
        "TEXT": json.dumps(declared if text is None else text),
        "EMULATED": str(int(emulated)),
    }
    source = path.with_suffix(".c")
    source.write_text(re.sub(r"@(\w+)@", lambda found: words[found[1]], BODY), encoding="utf-8")
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path

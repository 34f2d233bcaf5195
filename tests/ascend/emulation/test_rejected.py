"""What must not compile: mixed address spaces, unchecked pointers, and what the emulation does not model."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tools import build_ascend

# Name: (mistake, correction, words of the compiler's message).
SNIPPETS = {
    "global memory as UB": ("Ub<float> p = x;", "Gm<float> p = x;", "conversion from"),
    "UB as global memory": (
        "Gm<float> p = local.GetPhyAddr();",
        "Ub<float> p = local.GetPhyAddr();",
        "conversion from",
    ),
    "UB as L1": ("L1<float> p = local.GetPhyAddr();", "L1<float> p = nullptr;", "conversion from"),
    "spaces compared": ("bool b = local.GetPhyAddr() == x;", "bool b = x == x;", "no match for"),
    "global to global": ("DataCopy(global, global, 8);", "DataCopy(local, global, 8);", "no matching function"),
    "element types mixed": ("DataCopy(halves, global, 8);", "DataCopy(local, global, 8);", "no matching function"),
    "raw __gm__": ("__gm__ float *p = nullptr;", "Gm<float> p = nullptr;", "__gm__"),
    "raw __ubuf__": ("__ubuf__ float *p = nullptr;", "Ub<float> p = nullptr;", "__ubuf__"),
    "host pointer in a kernel": ("float *p = x;", "Gm<float> p = x;", "cannot convert"),
    "host pointer as global memory": ("float v; Gm<float> p = &v;", "Gm<float> p = x;", "conversion from"),
    "reference to an element": ("float &v = x[3];", "float v = x[3];", "cannot bind"),
    "element kept for later": ("auto e = x[3]; float v = e;", "float e = x[3]; float v = e;", "discards qualifiers"),
    "sum of unknown order": ("ReduceSum(local, local, local, 8);", "Add(local, local, local, 8);", "ReduceSum"),
    "function of unknown error": ("Exp(local, local, 8);", "Muls(local, local, 2.0f, 8);", "Exp"),
    "float atomics": ("SetAtomicAdd<float>();", "SetAtomicAdd<int32_t>();", "order of the cores"),
    "store past the data cache": ("global.SetValue(0, 1.0f);", "local.SetValue(0, 1.0f);", "SetValue"),
    "barrier of the scalar pipe": ("PipeBarrier<PIPE_S>();", "PipeBarrier<PIPE_V>();", "scalar pipe"),
    "event that is none": ("SetFlag<HardEvent::V_MTE1>(0);", "SetFlag<HardEvent::V_MTE2>(0);", "V_MTE1"),
    "condition in parentheses of ours": ("if (ASCEND_IS_AIV) return;", "if ASCEND_IS_AIV return;", "expected"),
    "padded copy of fp8": (
        "LocalTensor<fp8_e4m3fn_t> t; GlobalTensor<fp8_e4m3fn_t> g; DataCopyPad(g, t, DataCopyExtParams{});",
        "LocalTensor<uint8_t> t; GlobalTensor<uint8_t> g; DataCopyPad(g, t, DataCopyExtParams{});",
        "view them as bytes",
    ),
    "mode that is none": ("CrossCoreSetFlag<3, PIPE_V>(0);", "CrossCoreSetFlag<4, PIPE_V>(0);", "modes are"),
    "tensor out of a queue of depth 0": (
        "TQue<TPosition::VECIN, 0> q; auto t = q.AllocTensor<float>();",
        "TQue<TPosition::VECIN, 0> q; q.AllocTensor<float>(local);",
        "depth 0",
    ),
}
BODY = """
#include "kernel.h"
using namespace AscendC;
__global__ __vector__ void kernel([[maybe_unused]] Gm<float> x) {
  [[maybe_unused]] LocalTensor<float> local(TPosition::VECCALC, 0, 64);
  [[maybe_unused]] LocalTensor<int16_t> halves(TPosition::VECCALC, 256, 64);
  [[maybe_unused]] GlobalTensor<float> global;
  @CODE@
}
"""


def _compile(code: str) -> tuple[int, str]:
    words = [os.environ.get("CXX", "g++"), "-std=c++20", *build_ascend.DEFINES, "-fsyntax-only", "-x", "c++", "-"]
    words += ["-I", str(build_ascend.KERNELS), "-I", str(build_ascend.INCLUDE)]
    done = subprocess.run(words, input=BODY.replace("@CODE@", code), capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def messages() -> dict[str, tuple[int, str]]:
    """What the compiler says to each mistake."""
    mistakes = [mistake for mistake, _, _ in SNIPPETS.values()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(mistakes, pool.map(_compile, mistakes), strict=True))


@pytest.mark.parametrize("name", SNIPPETS)
def test_mistake_does_not_compile(name: str, messages: dict[str, tuple[int, str]]) -> None:
    """The mistake is refused, for the reason that it was made for."""
    mistake, _, words = SNIPPETS[name]
    status, text = messages[mistake]
    assert status != 0, f"compiles: {mistake}"
    assert words in text, text


def test_corrections_compile() -> None:
    """All corrections at once, so that no mistake is refused for the rest of its kernel."""
    blocks = "\n".join(f"{{ {correction} }}" for _, correction, _ in SNIPPETS.values())
    assert _compile(blocks) == (0, "")

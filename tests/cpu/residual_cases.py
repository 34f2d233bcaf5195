"""Inputs and callers shared by the tests of the residual, Engram and quantising kernels of the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tandem.backends.cpu import loading
from tandem.backends.cpu.backend import CpuBackend
from tandem.contract.types import CanonicalWeight, HcMix, HcWeights, QFormat, WeightKind

if not loading.native_status().available:
    pytest.skip(f"no native kernels: {loading.native_status().reason}", allow_module_level=True)

BACKEND = CpuBackend(True)
ROWS = (1, 2, 3, 15, 16, 17, 64)
MOST, STREAMS, WIDTH = 64, 4, 1056  # blocks of 512 columns, the last one small; whole groups of 32
GUARD = 64
Call = Callable[[dict[str, Tensor]], Any]


def op(name: str) -> Callable[..., Any]:
    """A launcher of the backend."""
    found = BACKEND.implementation(name)
    assert found is not None, name
    return found


def spread(rows: int, n: int, seed: int) -> Tensor:
    """bf16 rows whose groups differ in size by many powers of two, with some exact zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, n // 16, 16)) * 2.0 ** rng.integers(-30, 30, (rows, n // 16, 1))
    x[rng.random(x.shape) < 0.05] = 0.0
    return torch.from_numpy(x.reshape(rows, n)).to(torch.bfloat16)


def normal(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def bf16(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return normal(*shape, seed=seed, scale=scale).to(torch.bfloat16)


def hc_weights(m: int, width: int, seed: int, **changed: Any) -> HcWeights:
    """Parameters of one sub-layer."""
    mixes = m * m + 2 * m
    fn = CanonicalWeight(normal(mixes, m * width, seed=seed, scale=(m * width) ** -0.5), None, QFormat.F32)
    packed = BACKEND.pack_weight(WeightKind.HC, fn, (mixes, m * width))
    weights = HcWeights(packed, normal(mixes, seed=seed + 1), torch.tensor([0.7, 1.3, 0.9]), 1e-20, 1e-6, 20)
    return dataclasses.replace(weights, **changed)


def random_table(fmt: QFormat, rows: int, dim: int, seed: int) -> CanonicalWeight:
    """A weight of random codes, none of which is NaN."""
    rng = np.random.default_rng(seed)
    if fmt in (QFormat.BF16, QFormat.F32):
        data = normal(rows, dim, seed=seed)
        return CanonicalWeight(data.to(torch.bfloat16) if fmt is QFormat.BF16 else data, None, fmt)
    codes = rng.integers(0, 256, (rows, dim * fmt.bits // 8), dtype=np.uint8)
    if fmt.bits == 8:
        codes[codes & 0x7F == 0x7F] = 0x55
    groups = (-(-rows // 32), -(-dim // 32)) if fmt is QFormat.FP8_BLOCK32 else (rows, dim // fmt.group)
    low, high = (1, 0x7F) if fmt is QFormat.NVFP4 else (110, 140)
    scales = rng.integers(low, high, groups, dtype=np.uint8)
    return CanonicalWeight(torch.from_numpy(codes), torch.from_numpy(scales), fmt)


def _arguments() -> dict[str, dict[str, Tensor]]:
    """Arguments with rows, by op, of MOST rows each."""
    trunk, y = bf16(MOST, STREAMS, WIDTH, seed=1, scale=3.0), bf16(MOST, WIDTH, seed=2)
    pre, post = normal(MOST, STREAMS, seed=3), normal(MOST, STREAMS, seed=4)
    comb = normal(MOST, STREAMS, STREAMS, seed=5)
    rng = np.random.default_rng(6)

    def ints(low: int, high: int, *shape: int, dtype: Any = np.int32) -> Tensor:
        return torch.from_numpy(rng.integers(low, high, (MOST, *shape)).astype(dtype))

    mixed = {"pre": pre, "post": post, "comb": comb}
    many = spread(MOST, 2 * WIDTH, seed=7)
    given = {"ids": ints(0, 70), "index": ints(-1, 9)}
    return {
        "hc_mix": {"trunk": trunk},
        "hc_enter": {"trunk": trunk, "pre": pre},
        "hc_step": {"y": y, "trunk": trunk, **mixed},
        "hc_post": {"y": y, "trunk": trunk, "post": post, "comb": comb},
        "hc_collapse": {"trunk": trunk, "pre": pre},
        "hc_expand": {"x": y},
        "hc_mean": {"trunk": trunk},
        "swiglu_quant": {"gate": bf16(MOST, WIDTH, seed=8, scale=4.0), "up": y, "weight": pre[:, 0].clone()},
        "engram_hash": {"context": ints(0, 2**17, 4)},
        "engram_gather": {"rows": ints(100, 150, 6, dtype=np.int64)},
        "engram_gate": {"trunk": trunk, "kv": bf16(MOST, 5 * WIDTH, seed=9), "roles": ints(0, 2)},
        "embed": given,
        "rms_norm": {"x": many},
        "mxfp8": {"x": many},
        "mxfp4": {"x": many},
        "nvfp4": {"x": many},
    }


def _calls() -> dict[str, Call]:
    """What runs each op on arguments with rows; shared operands are fixed."""
    weights, norm = hc_weights(STREAMS, WIDTH, seed=20), normal(WIDTH, seed=21)
    qk = normal(STREAMS, WIDTH, seed=22)
    hashes = (
        torch.from_numpy(np.random.default_rng(23).integers(2**39, 2**44, 4) * 2 + 1),
        torch.tensor([[101, 103], [107, 109], [113, 127]]),
        torch.tensor([[0, 101], [204, 311], [420, 533]]),
    )
    engram = random_table(QFormat.MXFP8, 50, 64, seed=24)
    table = BACKEND.pack_weight(WeightKind.ENGRAM, engram, (50, 64))
    words = BACKEND.pack_weight(WeightKind.EMBED, random_table(QFormat.F32, 70, WIDTH, seed=25), (70, WIDTH))
    given = normal(9, WIDTH, seed=26)
    wide = normal(2 * WIDTH, seed=27)
    return {
        "hc_mix": lambda a: op("hc_mix")(a["trunk"], weights),
        "hc_enter": lambda a: op("hc_enter")(a["trunk"], a["pre"], weights, norm),
        "hc_step": lambda a: op("hc_step")(a["y"], a["trunk"], HcMix(a["pre"], a["post"], a["comb"]), weights, norm),
        "hc_post": lambda a: op("hc_post")(a["y"], a["trunk"], a["post"], a["comb"]),
        "hc_collapse": lambda a: op("hc_collapse")(a["trunk"], a["pre"]),
        "hc_expand": lambda a: op("hc_expand")(a["x"], STREAMS),
        "hc_mean": lambda a: op("hc_mean")(a["trunk"]),
        "swiglu_quant": lambda a: op("swiglu_quant")(a["gate"], a["up"], 3.0, a["weight"]),
        "engram_hash": lambda a: op("engram_hash")(a["context"], *hashes),
        "engram_gather": lambda a: op("engram_gather")(a["rows"], table, 100),
        "engram_gate": lambda a: op("engram_gate")(a["trunk"], a["kv"], qk, 1e-20, a["roles"]),
        "embed": lambda a: op("embed")(a["ids"], words, given, a["index"]),
        "rms_norm": lambda a: op("rms_norm")(a["x"], wide, 1e-20, True),
        "mxfp8": lambda a: op("quantize")(a["x"], QFormat.MXFP8),
        "mxfp4": lambda a: op("quantize")(a["x"], QFormat.MXFP4),
        "nvfp4": lambda a: op("quantize")(a["x"], QFormat.NVFP4),
    }


ARGUMENTS, CALLS = _arguments(), _calls()


def outputs(value: Any) -> list[Tensor]:
    """The arrays of what an op returns, as bytes by row."""
    if isinstance(value, Tensor):
        return [value.contiguous().flatten(1).view(torch.uint8)]
    parts = (value.data, value.scale) if hasattr(value, "scale") else value
    return [array for part in parts for array in outputs(part)]


def run(name: str, index: Tensor | slice) -> list[Tensor]:
    """An op on some of its rows."""
    return outputs(CALLS[name]({key: value[index].contiguous() for key, value in ARGUMENTS[name].items()}))


def same(got: list[Tensor], want: list[Tensor]) -> bool:
    return len(got) == len(want) and all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


class Guarded(TorchDispatchMode):
    """Gives launchers arrays that lie between guard bytes, and fills all of it with one byte."""

    def __init__(self, fill: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fill = fill
        self._buffers: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.ops.aten.empty.memory_format:
            return func(*args, **kwargs)
        shape, dtype = tuple(args[0]), kwargs.get("dtype") or torch.float32
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        buffer = np.full(GUARD + size + GUARD, self._fill, dtype=np.uint8)
        self._buffers.append(buffer)
        return torch.from_numpy(buffer)[GUARD : GUARD + size].view(dtype).view(shape)

    def intact(self) -> bool:
        """Whether all guard bytes are as they were."""
        return all(bool((b[:GUARD] == self._fill).all() and (b[-GUARD:] == self._fill).all()) for b in self._buffers)

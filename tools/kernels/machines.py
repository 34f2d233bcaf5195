"""Devices by their data sheets: what times in tables are made of."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Machine:
    """Peak rates of one device, dense.

    Args:
        name: shown in tables.
        bandwidth: bytes a second of device memory.
        flops: operations a second by the format of the operands.
        cores: where it is sold with several counts of cores, (matrix cores, vector cores) of each; peaks are those of
            the largest.
    """

    name: str
    bandwidth: float
    flops: dict[str, float]
    cores: tuple[tuple[int, int], ...] = field(default=())


# Driver query: 7680 bit at 3.996 GHz make 7.67 TB/s (8 nominal). Dense tensor rates are those of the 1000 W board;
# f32 outside the tensor cores: 148 multiprocessors x 128 lanes x 2 x 1.965 GHz.
B200 = Machine("B200", 7.67e12, {"fp4": 9.0e15, "fp8": 4.5e15, "bf16": 2.25e15, "f32": 74.4e12})

# Ascend 950: fp4 and fp8 rates and those of memory are what Huawei announced in September 2025; nobody here has seen a
# data sheet, and one report says 1.56 PFLOP/s in fp4 of the 950PR as shipped. bf16 is half of fp8: 36 cube cores x
# 16 x 16 x 16 x 2 a cycle make 0.49 PFLOP/s at 1.65 GHz, a clock that is unverified. f32 on the vector cores: 72 of
# them, 64 lanes (256 bytes a cycle) x 2 x the same clock. Core counts by SKU (957x, 958x, 959x) are those that the
# vendor's compiler prints; a 950DT has them too.
_ASCEND_FLOPS = {"fp4": 2.0e15, "fp8": 1.0e15, "bf16": 0.49e15, "f32": 15.2e12}
_ASCEND_CORES = ((28, 56), (32, 64), (36, 72))
ASCEND_950PR = Machine("950PR", 1.6e12, _ASCEND_FLOPS, _ASCEND_CORES)
ASCEND_950DT = Machine("950DT", 4.0e12, _ASCEND_FLOPS, _ASCEND_CORES)

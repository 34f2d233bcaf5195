"""Compiles recorded launches for a GPU that need not be there, and reads what came out.

What a device would compile just before its first launch is compiled here from the arguments of a recorded launch:
types, arguments that are one or a multiple of 16, compile-time constants and options.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_source
from triton.tools.tensor_descriptor import TensorDescriptor

from tandem.backends.cuda.launch import Launch

_TYPES = {
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
    torch.float8_e4m3fn: "fp8e4nv",
}
WARP = 32


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one kernel became.

    Args:
        name: of the jitted function.
        arch: 90 or 100.
        registers: of a thread.
        spills: bytes of local memory that spilt registers take.
        shared: bytes of shared memory of a block.
        tensor_memory: columns of tensor memory of a block.
        warps: of a block.
        sass: the instructions.
    """

    name: str
    arch: int
    registers: int
    spills: int
    shared: int
    tensor_memory: int
    warps: int
    sass: str


@dataclass(frozen=True)
class Request:
    """What a launch asks of the compiler; equal keys give the same code.

    Args:
        kernel: the jitted function.
        signature: type of each argument by name.
        constants: values known while compiling, by place.
        attributes: facts about arguments, by place.
        options: num_warps, num_stages and the like.
    """

    kernel: Any
    signature: dict[str, str]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], list[list[Any]]]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """Of the jitted function."""
        return str(self.kernel.__name__).lstrip("_")

    @property
    def key(self) -> str:
        """Text that differs where the code may."""
        constants = {place: getattr(value, "__name__", value) for place, value in self.constants.items()}
        facts = (self.kernel.__module__, self.name, self.signature, constants, self.attributes, self.options)
        return repr(facts)


def request_of(launch: Launch) -> Request:
    """What a device would compile for a launch."""
    names = list(launch.kernel.arg_names)
    values = dict(zip(names, launch.args, strict=False)) | {n: v for n, v in launch.meta.items() if n in names}
    options = {n: v for n, v in launch.meta.items() if n not in names}
    constant = {p.name for p in launch.kernel.params if p.is_constexpr}
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for place, name in enumerate(names):
        value = values[name]
        fixed = name in constant or value is None or (type(value) is int and value == 1)
        signature[name] = "constexpr" if fixed else _type(value)
        if fixed:
            constants[(place,)] = value
        elif isinstance(value, torch.Tensor) or (type(value) is int and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    return Request(launch.kernel, signature, constants, attributes, options)


def compile_request(request: Request, arch: int) -> Compiled:
    """Compile for compute capability ``arch`` / 10."""
    source = ASTSource(
        fn=request.kernel, signature=request.signature, constexprs=request.constants, attrs=request.attributes
    )
    made = compile_source(source, target=GPUTarget("cuda", arch, WARP), options=dict(request.options))
    return _read(request.name, arch, made)


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + _TYPES[value.dtype]
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{_TYPES[value.base.dtype]}{list(value.block_shape)}>".replace(" ", "")
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"a kernel cannot take {type(value).__name__}")


def _read(name: str, arch: int, made: Any) -> Compiled:
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(made.asm["cubin"])
        usage = _tool("cuobjdump", "-res-usage", str(cubin))
        sass = _tool("nvdisasm", "-c", str(cubin))
    found = {key: int(number) for key, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    data = made.metadata
    spills = found.get("STACK", 0) + found.get("LOCAL", 0)
    tensor_memory = getattr(data, "tmem_size", 0) or 0
    return Compiled(name, arch, found.get("REG", 0), spills, data.shared, tensor_memory, data.num_warps, sass)


def _tool(name: str, *arguments: str) -> str:
    path = getattr(knobs.nvidia, name).path
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout

"""Random weights for synthetic checkpoints, scaled so that the model behaves like a trained one.

Unit-scale random weights would hide errors: the SwiGLU clamp saturates, and legal rounding differences
grow through the layers until they look like faults.  So the residual trunk is larger than what a
sub-layer adds to it, the stream mixing stays close to the identity, and every bias differs from zero.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tandem.checkpoint.inventory import TensorSpec

_CHUNK_ELEMENTS = 1 << 22  # large tensors are made in pieces of rows
_TRUNK = 4.0  # standard deviation of embeddings
_BIAS = 0.2
_PRE_BIAS = 3.0
_COMB_BIAS = 1.5

# Standard deviation of weights, relative to 1/sqrt(fan-in).
_LINEAR_GAIN = {
    "w1": 2.5,  # with the clamp at 10, four standard deviations: reached now and then
    "w3": 2.5,
    "w2": 0.15,
    "head": 2.0,
    "engram.wkv": 0.5,
}


def random_rows(spec: TensorSpec, seed: int) -> Iterator[Tensor]:
    """Float32 values of a tensor, as consecutive pieces of rows.

    Args:
        spec: the tensor; packed fp4 yields twice its stored columns.
        seed: with the tensor's name it determines the values, whatever else is generated.
    """
    rng = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
    if len(spec.shape) == 1:
        yield torch.from_numpy(_vector(spec, rng))
        return
    rows, columns = spec.shape
    columns *= 2 if spec.dtype == "I8" else 1
    mean, deviation = _matrix_moments(spec.name, columns)
    step = max(32, _CHUNK_ELEMENTS // columns // 32 * 32)  # whole blocks of 32 rows
    for start in range(0, rows, step):
        values = rng.standard_normal((min(step, rows - start), columns), dtype=np.float32)
        yield torch.from_numpy(values * np.float32(deviation) + np.float32(mean))


def _vector(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    name, (size,) = spec.name, spec.shape
    if name.endswith("_base"):
        return _hc_base(name, size, rng)
    if name.endswith(("hc_attn_scale", "hc_ffn_scale")):
        return rng.uniform(0.05, 0.5, size).astype(np.float32)
    noise = rng.standard_normal(size, dtype=np.float32)
    if name.endswith("attn_sink"):
        return noise
    if name.endswith(("bias", "bias_vl")):
        return noise * np.float32(_BIAS)
    if name.startswith("image_"):
        return noise * np.float32(_TRUNK)
    return 1 + noise * np.float32(0.1)  # norm weights


def _hc_base(
    name: str, size: int, rng: np.random.Generator
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Biases of the stream mixing: read one stream, write all, keep streams mostly apart."""
    streams = round((size + 1) ** 0.5) - 1  # size = streams**2 + 2 * streams
    base = rng.standard_normal(size, dtype=np.float32) * np.float32(0.1)
    layer = int(name.split(".")[1])
    base[:streams] -= _PRE_BIAS
    base[layer % streams] += 2 * _PRE_BIAS
    comb = base[2 * streams :].reshape(streams, streams)
    comb += np.where(np.eye(streams) > 0, _COMB_BIAS, -_COMB_BIAS).astype(np.float32)
    return base


def _matrix_moments(name: str, columns: int) -> tuple[float, float]:
    """Mean and standard deviation of a matrix, by its role."""
    if name == "embed.weight":
        return 0.0, _TRUNK
    if name.endswith(("q_weight", "k_weight")):
        return 1.0, 0.2
    if name.endswith("embed.weight"):  # Engram and draft embeddings are read by one linear each
        return 0.0, 1.0
    parts = name.removesuffix(".weight").split(".")
    gain = _LINEAR_GAIN.get(parts[-1], _LINEAR_GAIN.get(".".join(parts[-2:]), 1.0))
    return 0.0, gain / columns**0.5

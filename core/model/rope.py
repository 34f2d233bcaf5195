"""Rotary tables: cos and sin by position, built on the host so that every backend reads the same bits."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tandem.model.config import TextConfig

Float32 = npt.NDArray[np.float32]


def frequencies(dim: int, theta: float) -> Float32:
    """theta^(-2i/dim), i = 0 .. dim/2 - 1, f32."""
    exponent = np.arange(0, dim, 2, dtype=np.float64) / dim
    return (1.0 / theta**exponent).astype(np.float32)


def yarn_bounds(dim: int, theta: float, original: int, beta_fast: float, beta_slow: float) -> tuple[int, int]:
    """First and last dimension of YaRN's ramp between kept and interpolated frequencies."""

    def dimension(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    return max(math.floor(dimension(beta_fast)), 0), min(math.ceil(dimension(beta_slow)), dim - 1)


def yarn_frequencies(text: TextConfig) -> Float32:
    """Frequencies of layers with compressed KV: interpolated by the factor beyond the ramp, kept before it."""
    dim, scaling = text.qk_rope_head_dim, text.rope_scaling
    base = frequencies(dim, text.compress_rope_theta).astype(np.float64)
    low, high = yarn_bounds(
        dim,
        text.compress_rope_theta,
        scaling.original_max_position_embeddings,
        scaling.beta_fast,
        scaling.beta_slow,
    )
    width = (high - low) if high != low else 0.001
    keep = 1.0 - np.clip((np.arange(dim // 2) - low) / width, 0.0, 1.0)
    return (base / scaling.factor * (1.0 - keep) + base * keep).astype(np.float32)


def rope_table(freqs: Float32, positions: int) -> Float32:
    """f32 [positions, dim]: cos of the dim/2 angles, then sin; angles are f32 products."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * freqs[None, :]
    wide = angles.astype(np.float64)
    return np.concatenate((np.cos(wide), np.sin(wide)), axis=1).astype(np.float32)

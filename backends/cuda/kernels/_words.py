"""Rows of any element type as rows of machine words, for kernels that only move them."""

from __future__ import annotations

import math

import torch

from tandem.backends.cuda.launch import require_dense

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def as_words(op: str, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors [N, ...], of equal rows, as [N, words] of the widest word that all their rows are aligned to."""
    require_dense(op, *tensors)
    size = tensors[0].element_size()
    width = math.prod(tensors[0].shape[1:])
    fits = math.gcd(8, width * size, *(t.storage_offset() * size for t in tensors))
    return [t.view(t.shape[0], width).view(_WORDS[fits]) for t in tensors]

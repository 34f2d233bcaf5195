"""Storing errors and outliers by kind of tensor and of activation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tandem.checkpoint.quantize import quantize_fp4_rows, quantize_fp8_blocks, quantize_fp8_rows
from tools.train_nano.parameters import stored_value

Tensor = torch.Tensor
_FP8_LARGEST, _FP8_SIGN = 0x7E, 0x7F  # +448, and what remains of a code without its sign
_FP4_LARGEST, _FP4_SIGN = 7, 7  # +6


@dataclass(slots=True)
class Tally:
    """Sums over all values of one kind.

    Args:
        count: values.
        squares, errors: sums of value^2 and (value - stored)^2.
        largest: of |value| relative to the root mean square of its own tensor.
        zeros, full: values stored as zero, and as the largest code; `coded` says of how many that is known.
    """

    count: int = 0
    squares: float = 0.0
    errors: float = 0.0
    largest: float = 0.0
    zeros: int = 0
    full: int = 0
    coded: int = 0

    def add(self, value: Tensor, stored: Tensor) -> None:
        """Take in a tensor; rows of zeros, which are padding, do not count."""
        rows = value.flatten(0, -2) if value.ndim > 1 else value.unsqueeze(0)
        used = (rows != 0).any(-1)
        x, y = rows[used].double(), stored.reshape(rows.shape)[used].double()
        squares = float(x.square().sum())
        if not squares:
            return
        self.count += x.numel()
        self.squares += squares
        self.errors += float((x - y).square().sum())
        self.largest = max(self.largest, float(x.abs().max()) / math.sqrt(squares / x.numel()))
        self.zeros += int((y == 0).sum())

    def add_codes(self, codes: Tensor, dtype: str) -> None:
        """Take in stored codes: packed fp4 (I8) or fp8."""
        raw = codes.view(torch.uint8)
        if dtype == "I8":
            raw, largest = torch.cat((raw & 0xF, raw >> 4)) & _FP4_SIGN, _FP4_LARGEST
        else:
            raw, largest = raw & _FP8_SIGN, _FP8_LARGEST
        self.coded += raw.numel()
        self.full += int((raw == largest).sum())

    def report(self) -> dict[str, Any]:
        """Figures of the kind; `largest_code` is null for formats without a scale."""
        return {
            "values": self.count,
            "relative_rms_error": math.sqrt(self.errors / self.squares) if self.squares else 0.0,
            "zeros": self.zeros / self.count if self.count else 0.0,
            "largest_code": self.full / self.coded if self.coded else None,
            "largest_over_rms": self.largest,
        }


def kind(name: str) -> str:
    """A parameter's name without its layer."""
    return re.sub(r"^(layers|mtp)\.\d+\.", "", name)


def weight_kinds(parameters: Mapping[str, Tensor], dtypes: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Figures of storing the parameters, by kind, each with its stored dtype."""
    tallies: dict[str, Tally] = {}
    formats: dict[str, str] = {}
    for name, value in parameters.items():
        tally = tallies.setdefault(kind(name), Tally())
        dtype = formats[kind(name)] = dtypes[name]
        tally.add(value, stored_value(name, value, dtype))
        if dtype == "I8":
            for matrix in value:
                tally.add_codes(quantize_fp4_rows(matrix)[0], dtype)
        elif dtype == "F8_E4M3":
            quantise = quantize_fp8_rows if name.endswith("engram.embed") else quantize_fp8_blocks
            tally.add_codes(quantise(value)[0], dtype)
    return {name: {"dtype": formats[name], **tally.report()} for name, tally in sorted(tallies.items())}


# What may be stored by itself: family -> the stored dtypes and the ending of the name.
FAMILIES = {
    "experts (fp4)": ("I8", ""),
    "engram tables (fp8)": ("F8_E4M3", "engram.embed"),
    "dense matrices (fp8)": ("F8_E4M3", ""),
    "bf16 tensors": ("BF16", ""),
}


def stored_family(parameters: Mapping[str, Tensor], dtypes: Mapping[str, str], family: str) -> dict[str, Tensor]:
    """Parameters with those of one family as stored, the others as they are."""
    return {
        name: stored_value(name, value, dtypes[name]) if family_of(name, dtypes[name]) == family else value
        for name, value in parameters.items()
    }


def family_of(name: str, dtype: str) -> str | None:
    """The family of a parameter; None for what is stored in full (F32)."""
    return next((f for f, (known, ending) in FAMILIES.items() if dtype == known and name.endswith(ending)), None)

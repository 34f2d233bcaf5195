"""Totals over a tensor inventory: bytes, parameters, and parameters used for one token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from tandem.checkpoint.inventory import TensorGroup, TensorSpec
from tandem.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class InventoryTotals:
    """Sizes of a checkpoint.  Parameter counts leave out scales and count an fp4 byte as two.

    Args:
        tensors: number of tensors.
        nbytes: stored bytes.
        backbone: parameters of layers without Engram, embedding, head and final norm.
        engram_tables: parameters of the Engram tables.
        engram: the same with their projections.
        dspark: parameters of the draft stages.
        vision: parameters of image encoder and aligner.
        active_prefill: parameters used for a prompt token, which runs the encoder layers only.
        active_decode: parameters used for a generated token: all layers and the head.
    """

    tensors: int
    nbytes: int
    backbone: int
    engram_tables: int
    engram: int
    dspark: int
    vision: int
    active_prefill: int
    active_decode: int


def inventory_totals(config: ModelConfig, inventory: Iterable[TensorSpec]) -> InventoryTotals:
    """Add up ``inventory``, which must be that of ``config``."""
    text = config.text
    routed_share = Fraction(text.num_experts_per_tok, text.n_routed_experts)
    tensors = nbytes = tables = engram = backbone = dspark = vision = 0
    prefill = decode = Fraction(0)
    for spec in inventory:
        tensors += 1
        nbytes += spec.nbytes
        if spec.group is TensorGroup.DSPARK:
            dspark += spec.params
        elif spec.group is TensorGroup.VISION:
            vision += spec.params if not spec.name.startswith("image_") else 0
        elif ".engram." in spec.name:
            engram += spec.params
            tables += spec.params if ".engram.embed." in spec.name else 0
        else:
            backbone += spec.params
            used = spec.params * (routed_share if ".experts." in spec.name else 1)
            layer = _layer(spec.name)
            if layer is not None or spec.name == "head.weight":
                decode += used
            if layer is not None and layer < text.n_prefill_layer:
                prefill += used
    return InventoryTotals(
        tensors, nbytes, backbone, tables, engram, dspark, vision, int(prefill), int(decode)
    )


def _layer(name: str) -> int | None:
    return int(name.split(".")[1]) if name.startswith("layers.") else None

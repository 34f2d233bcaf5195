"""The least that a step or a prompt can cost: bytes that must be read, products that must be computed.

Bytes are counted as stored in the checkpoint and as the canonical cache layouts have them, whatever a backend holds;
but few greedy rows need no more of a bf16 output head than its screen (`head_sample`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.backends.cpu.kernels.head_sample import MOST_ROWS
from tandem.checkpoint.inventory import TensorGroup, TensorSpec, tensor_inventory
from tandem.contract.types import QFormat
from tandem.model.config import ModelConfig, TextConfig
from tandem.model.flops import prompt_flops

# Bytes per element with scales: e4m3 + a byte per 32x32, e2m1 pairs + a byte per 32, and so on.
ELEMENT_BYTES = {
    QFormat.F32: 4.0,
    QFormat.BF16: 2.0,
    QFormat.MXFP8: 1 + 1 / 32,
    QFormat.FP8_BLOCK32: 1 + 1 / 1024,
    QFormat.MXFP4: 1 / 2 + 1 / 32,
    QFormat.NVFP4: 1 / 2 + 1 / 16,
}


def stored_bytes(fmt: QFormat, *shape: int) -> float:
    """Bytes of a tensor of this format, scales included (dimensions that are multiples of the groups)."""
    return math.prod(shape) * ELEMENT_BYTES[fmt]


def expected_experts(experts: int, chosen: int, rows: int) -> float:
    """Distinct experts that rows with uniform, independent choices use."""
    return experts * (1 - (1 - chosen / experts) ** rows)


@dataclass(frozen=True, slots=True)
class DecodeBytes:
    """Bytes that one decode step reads, by part."""

    dense: float
    experts: float
    cache: float
    engram: float
    embedding: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.dense + self.experts + self.cache + self.engram + self.embedding

    def to_dict(self) -> dict[str, float]:
        """By name, with the total."""
        names = ("dense", "experts", "cache", "engram", "embedding", "total")
        return {name: getattr(self, name) for name in names}


def decode_bytes(config: ModelConfig, batch: int, context: int, experts: Sequence[float]) -> DecodeBytes:
    """Bytes of a step that decodes one token of each request.

    Args:
        batch: requests.
        context: tokens of each, the new one included.
        experts: distinct experts used in the step, by layer.
    """
    text, specs = config.text, tensor_inventory(config)
    used = sum(count * _expert_bytes(specs, layer) for layer, count in enumerate(experts))
    rows = len(text.engram_layer_ids) * (text.engram_max_ngram_size - 1) * text.engram_n_heads
    return DecodeBytes(
        dense=float(sum(spec.nbytes for spec in specs if _dense(spec))) - _unread(specs, batch),
        experts=float(used),
        cache=batch * cache_read_bytes(text, context),
        engram=batch * rows * stored_bytes(QFormat.MXFP8, text.engram_head_dim),
        embedding=batch * stored_bytes(QFormat.BF16, text.hidden_size),
    )


def _unread(specs: Sequence[TensorSpec], rows: int) -> float:
    """Bytes of the output head that greedy rows leave out."""
    head = next(spec for spec in specs if spec.name == "head.weight")
    if rows > MOST_ROWS or head.nbytes != 2 * head.params:
        return 0.0
    return head.nbytes - screen_bytes(*head.shape)


def screen_bytes(vocab: int, depth: int) -> float:
    """Bytes of an output head's screen, with its bounds."""
    return stored_bytes(QFormat.FP8_BLOCK32, vocab, depth) + 4 * vocab


def _dense(spec: TensorSpec) -> bool:
    """Whether every step reads the whole tensor; biases of image rows are not read for text."""
    gathered = spec.name == "embed.weight" or ".engram.embed." in spec.name
    partly = ".experts." in spec.name or spec.name.endswith("bias_vl")
    return spec.group is TensorGroup.TEXT and not (gathered or partly)


def weights_read(config: ModelConfig) -> dict[str, float]:
    """Parameters and bytes of the text model as `benchmarks.cpu.peers.common.weights` counts them."""
    text = [spec for spec in tensor_inventory(config) if spec.group is TensorGroup.TEXT]
    dense, experts = [spec for spec in text if _dense(spec)], [spec for spec in text if ".experts." in spec.name]
    return {
        "parameters": float(sum(spec.params for spec in text)),
        "bytes": float(sum(spec.nbytes for spec in text)),
        "dense_parameters": float(sum(spec.params for spec in dense)),
        "dense_bytes": float(sum(spec.nbytes for spec in dense)),
        "expert_parameters": float(sum(spec.params for spec in experts)),
        "expert_bytes": float(sum(spec.nbytes for spec in experts)),
    }


def _expert_bytes(specs: Sequence[TensorSpec], layer: int) -> int:
    return sum(spec.nbytes for spec in specs if spec.name.startswith(f"layers.{layer}.ffn.experts.0."))


def cache_read_bytes(text: TextConfig, context: int) -> float:
    """Bytes of cache entries that one request's row reads in all layers."""
    window = stored_bytes(QFormat.MXFP8, text.head_dim)
    main, index = entry_bytes(text)
    total = 0.0
    for layer in range(text.num_hidden_layers):
        total += min(context, text.sliding_window) * window
        ratio = text.ratio(layer)
        if ratio:
            entries = context // ratio
            total += min(entries, text.index_topk) * main
            if text.is_index_source(layer):
                total += scored_entries(text, layer, entries) * index
    return total


def scored_entries(text: TextConfig, layer: int, entries: int) -> int:
    """Index keys that an index source reads for a row that sees ``entries``."""
    source = text.candidate_source_layer_id
    pooled = source is not None and layer > source
    return min(entries, text.candidate_topk_blocks * text.candidate_block_size) if pooled else entries


def entry_bytes(text: TextConfig) -> tuple[float, float]:
    """Bytes of a main entry (nvfp4) and of an index entry (mxfp4)."""
    return stored_bytes(QFormat.NVFP4, text.head_dim), stored_bytes(QFormat.MXFP4, text.index_head_dim)


def cache_bytes_per_token(text: TextConfig) -> float:
    """Bytes of main and index entries that a token adds; the windows do not grow with the context."""
    return sum(sum(entry_bytes(text)) / text.ratio(layer) for layer in text.kv_source_layer_ids)


def window_bytes(text: TextConfig) -> float:
    """Bytes of all windows of one request."""
    return text.num_hidden_layers * text.sliding_window * stored_bytes(QFormat.MXFP8, text.head_dim)


def prefill_flops(text: TextConfig, tokens: int) -> int:
    """Work of a prompt with every row in every layer, and one row of logits."""
    return prompt_flops(text, tokens).total


def decode_flops(text: TextConfig, batch: int, context: int) -> float:
    """Work of a decode step, in which every row has logits."""
    longer, shorter = prompt_flops(text, context), prompt_flops(text, context - 1)
    one = longer.encoder + longer.decoder - shorter.encoder - shorter.decoder
    return float(batch * (one + longer.head))


def floor_seconds(nbytes: float, flops: float, bandwidth: float, peak: float) -> float:
    """The least time: bytes at a bandwidth, or products at the fp32 peak, whichever is more."""
    return max(nbytes / bandwidth, flops / peak)


def mean_experts(counts: Sequence[Sequence[int]]) -> list[float]:
    """Mean over steps of the distinct experts by layer; ``counts`` is [steps][layers]."""
    return [float(value) for value in np.mean(np.asarray(counts, dtype=np.float64), axis=0)]

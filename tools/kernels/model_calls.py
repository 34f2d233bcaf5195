"""Workloads of the ops that the model graph calls."""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.types import CacheKind, QFormat, WeightKind
from tools.kernels import workloads as w
from tools.kernels.workloads import CALLS, Maker, Phase, Workload, call

FP8, MXFP8, MXFP4, BF16 = QFormat.FP8_BLOCK32, QFormat.MXFP8, QFormat.MXFP4, QFormat.BF16


def _linear(site: str, out: int, depth: int, fmt: QFormat, dtype: torch.dtype) -> None:
    def build(m: Maker, p: Phase) -> dict[str, Any]:
        x = m.bf16(p.rows, depth) if fmt is BF16 else m.quantised(MXFP8, p.rows, depth)
        return {"x": x, "weight": m.linear(fmt, out, depth), "out_dtype": dtype}

    CALLS.append(Workload("linear", site, build))


for _site, _out, _depth, _fmt, _dtype in (
    ("wq_a", w.Q_RANK, w.HIDDEN, FP8, torch.bfloat16),
    ("wq_b", w.HEADS * w.DIM, w.Q_RANK, FP8, torch.bfloat16),
    ("wkv", w.DIM, w.HIDDEN, FP8, torch.bfloat16),
    ("wo_b", w.HIDDEN, w.GROUPS * w.O_RANK, FP8, torch.bfloat16),
    ("shared_w1", w.INNER, w.HIDDEN, FP8, torch.bfloat16),
    ("shared_w2", w.HIDDEN, w.INNER, FP8, torch.bfloat16),
    ("indexer.wq_b", w.INDEX_HEADS * w.INDEX_DIM, w.Q_RANK, FP8, torch.bfloat16),
    ("indexer.weights_proj", w.INDEX_HEADS, w.HIDDEN, BF16, torch.bfloat16),
    ("compressor.wkv", 2 * w.DIM, w.HIDDEN, BF16, torch.float32),
    ("gate", w.EXPERTS, w.HIDDEN, BF16, torch.float32),
    ("head", w.VOCAB, w.HIDDEN, BF16, torch.float32),
):
    _linear(_site, _out, _depth, _fmt, _dtype)


@call("group_linear", "wo_a")
def _group(m: Maker, p: Phase) -> dict[str, Any]:
    depth = w.HEADS * w.DIM
    weight = m.weight(WeightKind.GROUP, FP8, w.GROUPS, w.O_RANK, depth // w.GROUPS)
    return {"x": m.quantised(MXFP8, p.rows, depth), "weight": weight}


@call("grouped_linear", "w1")
def _grouped(m: Maker, p: Phase) -> dict[str, Any]:
    batch = m.batch(p.rows)
    return {"x": batch.x, "weight": m.experts(w.INNER, w.HIDDEN), "ends": batch.ends}


@call("grouped_linear", "w2")
def _grouped_down(m: Maker, p: Phase) -> dict[str, Any]:
    x = m.quantised(MXFP8, p.rows * w.CHOSEN, w.INNER)
    return {"x": x, "weight": m.experts(w.HIDDEN, w.INNER), "ends": m.i32(w.EXPERTS)}


@call("embed")
def _embed(m: Maker, p: Phase) -> dict[str, Any]:
    return {"ids": m.i32(p.rows), "table": m.weight(WeightKind.EMBED, BF16, w.VOCAB, w.HIDDEN)}


@call("hc_expand")
def _expand(m: Maker, p: Phase) -> dict[str, Any]:
    return {"x": m.bf16(p.rows, w.HIDDEN), "m": w.STREAMS}


def _trunk(m: Maker, p: Phase) -> Any:
    return m.bf16(p.rows, w.STREAMS, w.HIDDEN)


@call("hc_mix")
def _mix(m: Maker, p: Phase) -> dict[str, Any]:
    return {"trunk": _trunk(m, p), "weights": m.hc_weights()}


@call("hc_collapse")
def _collapse(m: Maker, p: Phase) -> dict[str, Any]:
    return {"trunk": _trunk(m, p), "pre": m.f32(p.rows, w.STREAMS)}


@call("hc_mean")
def _mean(m: Maker, p: Phase) -> dict[str, Any]:
    return {"trunk": _trunk(m, p)}


@call("hc_post")
def _post(m: Maker, p: Phase) -> dict[str, Any]:
    mix = m.mix(p.rows)
    return {"y": m.bf16(p.rows, w.HIDDEN), "trunk": _trunk(m, p), "post": mix.post, "comb": mix.comb}


@call("hc_enter")
def _enter(m: Maker, p: Phase) -> dict[str, Any]:
    pre = m.f32(p.rows, w.STREAMS)
    return {"trunk": _trunk(m, p), "pre_prev": pre, "weights": m.hc_weights(), "norm_weight": m.f32(w.HIDDEN)}


@call("hc_step")
def _step(m: Maker, p: Phase) -> dict[str, Any]:
    y, trunk, mix = m.bf16(p.rows, w.HIDDEN), _trunk(m, p), m.mix(p.rows)
    return {"y": y, "trunk": trunk, "mix": mix, "weights": m.hc_weights(), "norm_weight": m.f32(w.HIDDEN)}


@call("rms_norm", "q_norm")
def _norm(m: Maker, p: Phase) -> dict[str, Any]:
    return {"x": m.bf16(p.rows, w.Q_RANK), "weight": m.f32(w.Q_RANK), "eps": 1e-20, "quant": True}


@call("rms_norm", "final")
def _final(m: Maker, p: Phase) -> dict[str, Any]:
    return {"x": m.bf16(p.rows, w.HIDDEN), "weight": m.f32(w.HIDDEN), "eps": 1e-20, "quant": False}


@call("rope")
def _rope(m: Maker, p: Phase) -> dict[str, Any]:
    return {"x": m.bf16(p.rows, w.HEADS, w.DIM), "cos_sin": m.f32(p.rows, w.ROPE)}


@call("quantize", "wo_a")
def _quantize(m: Maker, p: Phase) -> dict[str, Any]:
    return {"x": m.bf16(p.rows, w.GROUPS * w.O_RANK), "fmt": MXFP8}


@call("dequantize")
def _dequantize(m: Maker, p: Phase) -> dict[str, Any]:
    return {"q": m.quantised(MXFP8, p.rows, w.HIDDEN)}


@call("swiglu_quant", "shared")
def _swiglu(m: Maker, p: Phase) -> dict[str, Any]:
    return {"gate": m.bf16(p.rows, w.INNER), "up": m.bf16(p.rows, w.INNER), "limit": 10.0}


@call("swiglu_quant", "experts")
def _swiglu_experts(m: Maker, p: Phase) -> dict[str, Any]:
    count = p.rows * w.CHOSEN
    return {"gate": m.bf16(count, w.INNER), "up": m.bf16(count, w.INNER), "limit": 10.0, "weight": m.f32(count)}


@call("index_query")
def _index_query(m: Maker, p: Phase) -> dict[str, Any]:
    x = m.bf16(p.rows, w.INDEX_HEADS * w.INDEX_DIM)
    return {"x": x, "heads": w.INDEX_HEADS, "cos_sin": m.f32(p.rows, w.ROPE)}


def _write(site: str, kind: CacheKind, width: int) -> None:
    def build(m: Maker, p: Phase) -> dict[str, Any]:
        cache, slots = m.cache(kind, p), m.i32(p.rows)
        x, norm, cos_sin = m.bf16(p.rows, width), m.f32(width), m.f32(p.rows, w.ROPE)
        return {"x": x, "norm_weight": norm, "eps": 1e-20, "cos_sin": cos_sin, "cache": cache, "slots": slots}

    CALLS.append(Workload("kv_write", site, build))


for _kind, _width in ((CacheKind.MAIN, w.DIM), (CacheKind.INDEX, w.INDEX_DIM), (CacheKind.WINDOW, w.DIM)):
    _write(_kind.value, _kind, _width)


@call("kv_store")
def _store(m: Maker, p: Phase) -> dict[str, Any]:
    return {"x": m.bf16(p.rows, w.DIM), "cache": m.cache(CacheKind.MAIN, p), "slots": m.i32(p.rows)}


@call("kv_load")
def _load(m: Maker, p: Phase) -> dict[str, Any]:
    return {"cache": m.cache(CacheKind.MAIN, p), "slots": m.i32(p.rows)}


def _attention(m: Maker, p: Phase) -> dict[str, Any]:
    window, main = m.cache(CacheKind.WINDOW, p), m.cache(CacheKind.MAIN, p)
    return {
        "window": window,
        "window_slots": m.i32(p.rows, w.WINDOW),
        "main": main,
        "main_slots": m.i32(p.rows, w.TOP_K),
        "sink": m.f32(w.HEADS),
        "scale": w.DIM**-0.5,
        "hint": "prefill" if p.prefill else "decode",
    }


@call("sparse_attn")
def _sparse(m: Maker, p: Phase) -> dict[str, Any]:
    return {"q": m.bf16(p.rows, w.HEADS, w.DIM), **_attention(m, p)}


@call("attn_block")
def _attn_block(m: Maker, p: Phase) -> dict[str, Any]:
    q, cos_sin = m.bf16(p.rows, w.HEADS, w.DIM), m.f32(p.rows, w.ROPE)
    return {"q": q, "cos_sin": cos_sin, **_attention(m, p)}


@call("attn_block", "window-only")
def _window_block(m: Maker, p: Phase) -> dict[str, Any]:
    return _attn_block(m, p) | {"main": None, "main_slots": None}


def _scores(m: Maker, p: Phase) -> dict[str, Any]:
    return {
        "q": m.quantised(MXFP4, p.rows, w.INDEX_HEADS * w.INDEX_DIM),
        "w": m.bf16(p.rows, w.INDEX_HEADS),
        "cache": m.cache(CacheKind.INDEX, p),
        "table": m.table(p),
        "row_slot": m.i32(p.rows),
    }


@call("index_scores", "ratio 1")
def _index_scores(m: Maker, p: Phase) -> dict[str, Any]:
    return _scores(m, p) | {"lens": m.i32(p.rows), "width": p.context}


@call("index_scores_at", "pool")
def _index_scores_at(m: Maker, p: Phase) -> dict[str, Any]:
    pool = min(w.POOL_BLOCKS * w.POOL_BLOCK, p.context)
    return _scores(m, p) | {"entries": m.i32(p.rows, pool)}


@call("block_max")
def _block_max(m: Maker, p: Phase) -> dict[str, Any]:
    return {"scores": m.bf16(p.rows, p.context), "lens": m.i32(p.rows), "block": w.POOL_BLOCK}


@call("topk_index", "entries")
def _topk(m: Maker, p: Phase) -> dict[str, Any]:
    return {"scores": m.bf16(p.rows, p.context), "k": w.TOP_K}


@call("topk_index", "pool blocks")
def _topk_blocks(m: Maker, p: Phase) -> dict[str, Any]:
    blocks = p.context // w.POOL_BLOCK
    return {"scores": m.bf16(p.rows, blocks), "k": min(w.POOL_BLOCKS, blocks)}


@call("pool_expand")
def _pool(m: Maker, p: Phase) -> dict[str, Any]:
    count = min(w.POOL_BLOCKS, p.context // w.POOL_BLOCK)
    return {"blocks": m.i32(p.rows, count), "block": w.POOL_BLOCK, "lens": m.i32(p.rows)}


@call("compress_update")
def _compress(m: Maker, p: Phase) -> dict[str, Any]:
    value, gate, state = m.f32(p.rows, w.DIM), m.f32(p.rows, w.DIM), m.f32(p.requests + 1, 8, 2, w.DIM)
    return {"value": value, "gate": gate, "state": state, "rows": m.rows(p.rows), "ratio": 2}


@call("engram_context")
def _context(m: Maker, p: Phase) -> dict[str, Any]:
    history = m.i32(p.requests + 1, 16)
    return {"rows": m.rows(p.rows), "vocabulary": m.i32(w.VOCAB), "history": history, "pad": 2, "n": w.NGRAM}


@call("engram_hash")
def _hash(m: Maker, p: Phase) -> dict[str, Any]:
    shape = (w.NGRAM - 1, w.NGRAM_HEADS)
    primes, offsets = m.i64(*shape), m.i64(*shape)
    return {
        "context": m.i32(p.rows, w.NGRAM), "multipliers": m.i64(w.NGRAM), "primes": primes, "offsets": offsets
    }  # fmt: skip


@call("engram_gather")
def _gather(m: Maker, p: Phase) -> dict[str, Any]:
    table = m.weight(WeightKind.ENGRAM, MXFP8, w.TABLE_ROWS, w.NGRAM_DIM)
    return {"rows": m.i64(p.rows, (w.NGRAM - 1) * w.NGRAM_HEADS), "table": table, "first_row": 0}


@call("engram_gate")
def _gate(m: Maker, p: Phase) -> dict[str, Any]:
    kv = m.bf16(p.rows, (w.STREAMS + 1) * w.HIDDEN)
    qk = m.f32(w.STREAMS, w.HIDDEN)
    return {"trunk": _trunk(m, p), "kv": kv, "qk": qk, "eps": 1e-20, "roles": m.i32(p.rows)}


@call("moe_route")
def _route(m: Maker, p: Phase) -> dict[str, Any]:
    gate, bias = m.linear(BF16, w.EXPERTS, w.HIDDEN), m.f32(w.EXPERTS)
    more = {"roles": m.i32(p.rows), "k": w.CHOSEN, "scaling": 1.5}
    return {"x": m.bf16(p.rows, w.HIDDEN), "gate": gate, "bias": bias, "bias_vl": bias, **more}


@call("moe_dispatch")
def _dispatch(m: Maker, p: Phase) -> dict[str, Any]:
    experts, weights = m.i32(p.rows, w.CHOSEN), m.f32(p.rows, w.CHOSEN)
    xq = m.quantised(MXFP8, p.rows, w.HIDDEN)
    more = {"row_slot": m.i32(p.rows), "local": (0, w.EXPERTS)}
    return {"xq": xq, "experts": experts, "weights": weights, **more}


@call("moe_combine")
def _combine(m: Maker, p: Phase) -> dict[str, Any]:
    y, shared = m.bf16(p.rows * w.CHOSEN, w.HIDDEN), m.bf16(p.rows, w.HIDDEN)
    return {"y": y, "batch": m.batch(p.rows), "shared": shared}


@call("gather_rows", "hidden")
def _rows(m: Maker, p: Phase) -> dict[str, Any]:
    return {"x": m.bf16(p.rows, w.HIDDEN), "index": m.i32(p.requests)}


@call("scatter_rows", "taps")
def _scatter(m: Maker, p: Phase) -> dict[str, Any]:
    x = m.bf16(p.rows + 1, w.HIDDEN)
    return {"x": x, "index": m.i32(p.rows), "values": m.bf16(p.rows, w.HIDDEN)}

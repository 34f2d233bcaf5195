"""Text of the model's README that no measurement changes; it holds no figures."""

from __future__ import annotations

INTRODUCTION = """\
# Tandem's small model

A language model of the V4.1 architecture with every feature of it, small enough to come with the package: Engram
memory, hyper-connected residual streams, an encoder and a decoder half, compressed keys shared between layers, an
indexer with a candidate pool, a sliding window, a mixture of experts balanced by bias, and DSpark draft stages with
Markov and confidence heads. Weights are fp8 and fp4, keys are cached in fp8 and fp4, as in the official format.

It exists so that demonstrations, tests and benchmarks run on a real model instead of random weights. What it knows is
one old book in a modern translation.

```
tandem generate "Blessed is the man who" --temperature 0.7
tandem chat --temperature 0.7
```

This file is written by `python -m tools.train_nano.model_card`; all figures come from reports that one command each
makes anew."""

TRAINING = """\
From the root of the repository, in this order:

```
python -m tools.train_nano.dataset
python -m tools.train_nano.train --compile
python -m tools.train_nano.export --no-draft
python -m tools.train_nano.continuations
python -m tools.train_nano.draft --compile
python -m tools.train_nano.export
python -m tools.train_nano.report_quality
python -m tools.train_nano.report_samples
python -m tools.train_nano.report_quantisation
python -m tools.train_nano.report_selection
python -m tools.train_nano.report_experts
python -m tools.train_nano.ablate --all
python -m tools.train_nano.acceptance --json > build/nano/reports/acceptance.json
python -m tools.train_nano.model_card
```

Attention is full at first and later sparse; the indexer learns from full attention throughout. Weights, then
activations and caches, are quantised while training goes on, and at the end the weights are drawn onto the stored
grid. The recipe; phases are shares of the run:"""

LIMITS = """\
- It is childish: sentences have the sound of the book, seldom sense. It knows nothing else, and nothing it says is
  advice or fact.
- It was trained on short texts. Beyond their length it goes on, on patterns it has not practised.
- One book in one language, religious and ancient, with that book's views of people.
- Conversations work in the forms it was shown: a word to speak of, a verse to continue, a greeting. The answer is often
  beside the point.
- Images are not understood: no vision encoder was trained."""

# What a row of the table says, and the fields of ``text_config`` it shows.
CONFIGURATION: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("vocabulary", ("vocab_size",)),
    ("hidden size, layers", ("hidden_size", "num_hidden_layers")),
    ("query heads, their size, of which rotary", ("num_attention_heads", "head_dim", "qk_rope_head_dim")),
    ("query rank; output groups and rank", ("q_lora_rank", "o_groups", "o_lora_rank")),
    ("window", ("sliding_window",)),
    ("compression by layer, draft stages last", ("compress_ratios",)),
    ("layers with own keys", ("kv_source_layer_ids",)),
    ("layers with own indexer", ("index_source_layer_ids",)),
    ("indexer heads, their size, entries selected", ("index_n_heads", "index_head_dim", "index_topk")),
    (
        "candidate pool: layer, blocks, block size",
        ("candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size"),
    ),
    ("experts, chosen for a token, shared", ("n_routed_experts", "num_experts_per_tok", "n_shared_experts")),
    ("width of an expert", ("moe_intermediate_size",)),
    ("residual streams, Sinkhorn iterations", ("hc_mult", "hc_sinkhorn_iters")),
    ("Engram layers, their rows", ("engram_layer_ids", "engram_num_embeddings")),
    ("Engram longest n-gram, heads, row size", ("engram_max_ngram_size", "engram_n_heads", "engram_head_dim")),
    ("draft stages, drafts at once", ("num_nextn_predict_layers", "dspark_block_size")),
    ("draft experts, chosen; Markov rank", (
        "dspark_n_routed_experts", "dspark_num_experts_per_tok", "dspark_markov_rank",
    )),
)  # fmt: skip

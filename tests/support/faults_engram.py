"""Faults of Engram."""

from __future__ import annotations

from support.mutation import edit

from tandem.errors import ConfigError, LayoutError

TABLES = "model.engram_tables"
LAYER = "model.engram"
CONTEXT = "ops.engram_context"
GATE = "ops.engram_gate"

FAULTS = [
    edit(21, "pad not compressed", LAYER, "EngramContext.__init__",
         "int(vocabulary[text.engram_pad_token_id])", "text.engram_pad_token_id"),
    edit(21, "a blocked token hides only itself", CONTEXT, "engram_context",
         "blocked = blocked | (position < back)", "blocked = (position < back)"),
    edit(21, "image tokens do not block", CONTEXT, "engram_context", "rows.roles == 0", "rows.roles >= 0"),
    edit(21, "sum in place of xor", "ops.engram_hash", "engram_hash", "mixed ^ products", "mixed + products"),
    edit(21, "primes used twice", TABLES, "hash_primes",
         "candidate not in used and _is_prime", "candidate not in found and _is_prime", stops=ConfigError),
    edit(21, "seed without stride", TABLES, "engram_multipliers", "_SEED_STRIDE * layer_id", "layer_id"),
    edit(21, "another random generator", TABLES, "engram_multipliers",
         "np.random.default_rng(_SEED_STRIDE * layer_id).integers(",
         "np.random.RandomState(_SEED_STRIDE * layer_id).randint("),
    edit(21, "multipliers from the full vocabulary", LAYER, "Engram.__init__",
         "text.engram_compressed_vocab_size", "text.vocab_size"),
    edit(22, "value before the keys", GATE, "engram_gate", "k[:, :m], k[:, m:]", "k[:, 1:], k[:, :1]"),
    edit(22, "query weight alone", LAYER, "Engram.__init__", ' * load.host(f"{site}.k_weight")', ""),
    edit(22, "no division by the root of the width", GATE, "engram_gate", " * width**-0.5", ""),
    edit(22, "no signed root", GATE, "engram_gate", "torch.copysign(torch.sqrt(s.abs().clamp_min(1e-6)), s)", "s"),
    edit(22, "no floor under the root", GATE, "engram_gate", ".clamp_min(1e-6)", ""),
    edit(22, "stream 0 alone", GATE, "engram_gate", "gate.unsqueeze(-1) * value",
         "(gate * (torch.arange(m) == 0)).unsqueeze(-1) * value"),
    edit(23, "after the mixes", "model.deepseek_v41", "DeepseekV41.forward",
         "trunk = self._remember(entry, trunk, context)\n"
         "            x, xq, mix = self._enter(trunk, mix.pre, entry.hyper, entry.norm)",
         "x, xq, mix = self._enter(trunk, mix.pre, entry.hyper, entry.norm)\n"
         "            trunk = self._remember(entry, trunk, context)"),
    edit(24, "segments padded", TABLES, "engram_offsets",
         "(size for sizes in layer", "(size + -size % 8 for sizes in layer", stops=LayoutError),
    edit(30, "history forgets images", CONTEXT, "engram_context",
         "history[target, position.remainder(ring)] = own",
         "history[target, position.remainder(ring)] = vocabulary.index_select(0, rows.ids)"),
]  # fmt: skip

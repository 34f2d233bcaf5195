"""Faults of sampling, which the comparison of logits cannot see."""

from __future__ import annotations

from support.mutation import edit

FAULTS = [
    edit(28, "top-k before top-p", "ops._fixed_cdf", "kept_tokens",
         "share, weight.sum(-1)", "share, torch.where(torch.arange(vocab) < top_k.unsqueeze(-1), ordered, 0).sum(-1)"),
    edit(28, "logprobs before the filters", "ops.sample", "sample",
         "log_normaliser(dist.scaled, dist.kept, dist.top)", "log_normaliser(dist.scaled, None, dist.top)"),
    edit(28, "logprobs before the temperature", "ops.sample", "sample",
         "dist.scaled.gather(1, token)", "dist.raw.gather(1, token)"),
]  # fmt: skip

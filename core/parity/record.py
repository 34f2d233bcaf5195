"""Records a trace: runs prompts through the engine on one backend and keeps what its ops were given and gave."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from tqdm import tqdm

from tandem.checkpoint.shipped import shipped_model
from tandem.config import EngineConfig, load_config
from tandem.contract.backend import Backend
from tandem.contract.opspec import OP_TABLE, table_signature, table_state
from tandem.contract.plan import Plan
from tandem.contract.types import KVCache, ShardSpec
from tandem.engine.assembly import Assembly, assemble
from tandem.engine.engine import Engine
from tandem.engine.outputs import LiveRequest, RequestOutput
from tandem.engine.plan import StepPlan
from tandem.engine.runner import ModelRunner, StepHandle
from tandem.errors import ConfigError
from tandem.parity.budget import choose
from tandem.parity.spool import Spool, references
from tandem.parity.watch import Observed, WatchedPlan, Watcher
from tandem.parity.writer import TraceWriter, require_empty
from tandem.sampling.params import SamplingParams
from tandem.tokenizer.tokenizer import Tokenizer

Prompt = str | list[int]
MAX_PROMPTS = 64  # they run together
DEFAULT_BUDGET = 64 * 10**6
_GROUP, _FILES = 16, 4096  # bytes of the header about a group that is left out, and about files
MOST_DRAFTS = 64  # of a request in a step
# Options of runs that a trace does not tell, and why.
_UNTOLD = (
    ("scheduler.overlap", "on", "a trace is told step by step, and two would run at once; the tokens are the same"),
    ("speculation.verify", "scheduled", "measured times would decide its rows, so that no other run had the same"),
)
_CHUNK = 32  # rows of a prompt in a step: a small trace chooses among steps


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was written: the trace's digest, sizes, and what the prompts gave."""

    digest: str
    nbytes: int
    records: int
    left_out: dict[str, Any]
    outputs: list[RequestOutput]


class ObservedRunner(ModelRunner):
    """A runner that notes which rows of which requests each step has."""

    def __init__(self, parts: Assembly, coupled: bool) -> None:
        super().__init__(parts.model, parts.plan, parts.builder, parts.table, parts.vocab_size, parts.book, coupled)
        self.steps: list[list[list[int]]] = []

    def launch(self, plan: StepPlan, live: Mapping[int, LiveRequest]) -> StepHandle:
        """As `ModelRunner.launch`."""
        handle = super().launch(plan, live)
        starts, rows, placed = plan.starts.copy(), plan.num_rows.copy(), handle.draws
        if placed is not None:  # where rows of drafts stand, and how many there are, the device decided
            chosen = placed.entries < plan.speculative
            starts[placed.entries[chosen]], rows[placed.entries[chosen]] = placed.base[chosen], placed.counts[chosen]
        entries = zip(plan.slots.tolist(), starts.tolist(), rows.tolist(), strict=True)
        self.steps.append([[live[slot].request_id, start, count] for slot, start, count in entries])
        return handle


def read_prompts(file: Path) -> list[Prompt]:
    """Prompts of a file: a text a line; in a ``.jsonl`` file a text, token ids, or ``{"prompt": ...}`` a line.

    Raises:
        ConfigError: it cannot be read, or holds none.
    """
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_prompts(file, str(error)) from error
    prompts = [_parsed(line, file) if file.suffix == ".jsonl" else line for line in lines]
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise _bad_prompts(file, f"it has {len(prompts)} prompts, not 1 to {MAX_PROMPTS}")
    return prompts


def _parsed(line: str, file: Path) -> Prompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _bad_prompts(file, f"a line is not JSON: {error}") from error
    prompt = value.get("prompt") if isinstance(value, dict) else value
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return prompt
    raise _bad_prompts(file, f"a line is neither a text nor token ids: {line[:60]}")


def _bad_prompts(file: Path, why: str) -> ConfigError:
    return ConfigError(
        "the prompts cannot be read", where=str(file), why=why, fix="give a text a line, or JSON lines in a .jsonl file"
    )


def model_directory(config: EngineConfig) -> Path:
    """The configured model, or the one that comes with the package."""
    return Path(config.model.path) if config.model.path else shipped_model()


def fit(config: EngineConfig, longest: int, count: int) -> EngineConfig:
    """Sizes just large enough for some requests, where the user did not choose them: state arrays lie in the trace.

    Args:
        longest: tokens of the longest request, prompt and output.
        count: requests.
    """
    chosen = config.speculation.draft_tokens
    drafts = 0 if "speculation.draft_tokens" not in config.origins else MOST_DRAFTS if chosen is None else chosen
    sizes = {
        "model.max_model_len": max(longest, 2),
        "scheduler.max_slots": count,
        "scheduler.max_tokens_per_step": max(256, count * (1 + drafts)),
        "scheduler.max_chunk": _CHUNK,
        "speculation.draft_tokens": 0,
        "cache.prefix": "off",
        "scheduler.turn_ms": 0,  # who exports a request wants to see each token
    }
    values = {f"{section}.{key}": value for section, part in config.to_dict().items() for key, value in part.items()}
    own = {key: value for key, value in values.items() if key in config.origins}
    return load_config(env={}, args=sizes | own)


def _require_told(config: EngineConfig) -> None:
    """Refuse two steps in flight, and rows of drafts by measured times."""
    for key, value, why in _UNTOLD:
        section, name = key.split(".")
        if getattr(getattr(config, section), name) == value:
            raise ConfigError(
                "a run cannot be recorded",
                where=f"{key} = {value}, from {config.origins.get(key, 'argument')}",
                why=why,
                fix="leave the option out",
            )


def record(
    config: EngineConfig,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    out: Path,
    budget: int = DEFAULT_BUDGET,
    backend: Backend | None = None,
    show_progress: bool | None = None,
) -> Recorded:
    """Run prompts together and write the trace.

    Args:
        config: engine options; sizes that nobody chose are made to fit.
        params: of all prompts; a seed that is not given is 0.
        out: the trace directory.
        budget: bytes the trace may take.
        backend: an open backend; None opens the configured one.
    Raises:
        TraceError: ``out`` is not empty.
        ConfigError: also for two steps in flight, and for rows of drafts by measured times.
        CheckpointError, RequestError, CapacityError: as the engine.
    """
    require_empty(out)
    _require_told(config)
    directory = model_directory(config)
    tokenizer = Tokenizer.load(directory)
    tokens = [tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    sized = fit(config, max(map(len, tokens)) + params.max_tokens, len(tokens))
    with Spool() as spool:
        watcher = Watcher(spool)

        def make_plan(opened: Backend, shard: ShardSpec) -> Plan:
            watcher.attach(opened)
            return WatchedPlan(opened, shard, watcher)

        parts = assemble(sized, backend, show_progress, make_plan)
        try:
            parts.runner = runner = ObservedRunner(parts, sized.speculation.accept == "coupled")
            outputs, steps = _run(parts, runner, watcher, tokens, params, show_progress)
            header = _header(parts, directory, sized, params, show_progress) | {
                "prompts": [p if isinstance(p, str) else None for p in prompts],
                "requests": [_told(output) for output in outputs],
                "steps": steps,
                "budget": budget,
            }
            groups = {(seen.tree["step"], seen.tree["layer"]) for seen in watcher.observed}
            told = len(json.dumps(header)) + len(groups) * _GROUP + _FILES
            kept, whole, left = choose(watcher.observed, spool, budget - told)
            writer = TraceWriter(out, header)
            _store(writer, parts.plan.backend, kept, whole, spool)
            digest = writer.close(left_out=left)
        finally:
            parts.close()
    nbytes = sum(file.stat().st_size for file in out.iterdir())
    return Recorded(digest, nbytes, len(kept), left, outputs)


def _run(
    parts: Assembly,
    runner: ObservedRunner,
    watcher: Watcher,
    prompts: list[list[int]],
    params: SamplingParams,
    show: bool | None,
) -> tuple[list[RequestOutput], list[list[list[int]]]]:
    """Run all prompts to their end; gives their outputs, and for each step (request, first position, rows)."""
    watcher.name_caches(cache_names(parts))
    engine, finished = Engine(parts), dict[int, RequestOutput]()
    watcher.on = True
    numbers = [engine.add_request(prompt, params) for prompt in prompts]
    total = sum(map(len, prompts)) + len(prompts) * (params.max_tokens - 1)
    with tqdm(total=total, desc="recording", unit="row", disable=None if show is None else not show) as bar:
        while not engine.idle:
            for piece in engine.step():
                if piece.output is not None:
                    finished[piece.request_id] = piece.output
            watcher.end_step()
            bar.update(sum(rows for _, _, rows in runner.steps[-1]) if runner.steps else 0)
    outputs = [finished[number] for number in numbers]
    for output in outputs:
        if output.error is not None:
            raise output.error
    order = {number: i for i, number in enumerate(numbers)}
    return outputs, [[[order[n], start, rows] for n, start, rows in step] for step in runner.steps]


def cache_names(parts: Assembly) -> dict[str, KVCache]:
    """Every paged cache by kind and layer, and that of the draft rows' own keys."""
    caches = parts.model.caches
    kinds = (("main", caches.main), ("index", caches.index), ("window", caches.window))
    found = {f"{kind}.{layer}": cache for kind, by_layer in kinds for layer, cache in by_layer.items()}
    return found if caches.draft is None else found | {"draft.keys": caches.draft}


def _store(writer: TraceWriter, backend: Backend, kept: list[Observed], whole: bool, spool: Spool) -> None:
    for weight in {id(weight): weight for seen in kept for weight in seen.weights}.values():
        weight.store(backend, spool, whole)
    for seen in kept:
        for name in references(seen.tree):
            if not writer.holds(name):
                writer.put(spool.get(name))
        writer.add_tree(seen.tree)


def _told(output: RequestOutput) -> dict[str, Any]:
    return {
        "prompt_token_ids": list(output.prompt_token_ids),
        "token_ids": list(output.token_ids),
        "text": output.text,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }


def _header(
    parts: Assembly, directory: Path, config: EngineConfig, params: SamplingParams, show_progress: bool | None
) -> dict[str, Any]:
    flags = config.to_dict()
    flags["model"] = {key: value for key, value in flags["model"].items() if key != "path"}
    numbers = dataclasses.asdict(params).items()
    sampling = {key: value for key, value in numbers if isinstance(value, bool | int | float)}
    return describe(parts.plan.backend) | {
        "model": model_hashes(directory, show_progress),
        "flags": flags,
        "flags_sha256": hashlib.sha256(json.dumps(flags, sort_keys=True).encode()).hexdigest(),
        "sampling": sampling,
        "composite": sorted(parts.plan.composite),
    }


def describe(backend: Backend) -> dict[str, Any]:
    """What a trace says of the backend, the contract and the libraries it was made with."""
    caps = backend.caps
    ops = {name: caps.ops[name] for name in OP_TABLE if name in caps.ops}
    allows = {name: {key: sorted(map(str, values)) for key, values in cap.allows.items()} for name, cap in ops.items()}
    return {
        "backend": backend.name,
        "fingerprint": dict(backend.fingerprint()),
        "op_table": {"sha256": table_signature(), "state": table_state()},
        "capabilities": {
            "contract": list(caps.contract),
            "formats": sorted(caps.formats),
            "batch_invariant": caps.batch_invariant,
            "graphs": caps.graphs,
            "notes": caps.notes,
            "verification": caps.verification,
            "ops": {name: {"impl": cap.impl, "allows": allows[name], "notes": cap.notes} for name, cap in ops.items()},
        },
        "libraries": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "safetensors": safetensors.__version__,
        },
    }


def model_hashes(directory: Path, show_progress: bool | None = None) -> dict[str, Any]:
    """SHA-256 of a model's files, and one that stands for all of them."""
    files = sorted([*directory.glob("*.json"), *directory.glob("*.safetensors")])
    hashes = {}
    for file in tqdm(files, desc="hashing", unit="file", disable=None if show_progress is None else not show_progress):
        with file.open("rb") as opened:
            hashes[file.name] = hashlib.file_digest(opened, "sha256").hexdigest()
    digest = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
    config, tokenizer = hashes["config.json"], hashes["tokenizer.json"]
    return {"sha256": digest, "config": config, "tokenizer": tokenizer, "files": hashes}

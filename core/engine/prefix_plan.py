"""How much the prefix cache may keep, and what it is told about the engine it serves."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass

from tandem.cache.hashing import Identity, fingerprint_of
from tandem.cache.prefix import PrefixLimits
from tandem.cache.tables import WindowGeometry, blocks_for
from tandem.checkpoint.reader import Checkpoint
from tandem.config import EngineConfig
from tandem.contract.opspec import CONTRACT_VERSION
from tandem.contract.plan import Plan
from tandem.engine.requests import RequestTable
from tandem.errors import ConfigError
from tandem.model.caches import CacheSpec, ModelCaches

_LOG = logging.getLogger(__name__)
_OWN_OPTIONS = ("cache.prefix", "cache.prefix_mib", "cache.prefix_state")


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """Room for the prefix cache.

    Args:
        limits: its bounds; None when it is off.
        blocks, pages: to add to the main and the window pool.
    """

    limits: PrefixLimits | None = None
    blocks: int = 0
    pages: int = 0


def plan_prefix(
    options: EngineConfig,
    spec: CacheSpec,
    geometry: WindowGeometry,
    longest: int,
    page_bytes: int,
    block_bytes: int,
    kept: int,
) -> PrefixPlan:
    """Size the prefix cache.

    Args:
        options: of the engine.
        spec, geometry: sized for running requests alone.
        longest: most tokens of a request.
        page_bytes, block_bytes: memory of a window page and of a main block in all layers.
        kept: rows at the end of a prompt that bounded replay computes in any case; 0 without it.

    Returns:
        The plan.  Where no request could ever be served from the cache it is off, and the logger is warned.

    Raises:
        ConfigError: it could never serve a request, and one of its options was given.
    """
    cache = options.cache
    if cache.prefix == "off":
        return PrefixPlan()
    replay = geometry.window + geometry.rollback if cache.prefix_state == "replay" else 0
    limits = PrefixLimits(block_bytes=block_bytes, page_bytes=page_bytes, replay=replay)
    if cache.prefix_mib is None:
        plan = PrefixPlan(limits, 0, 0 if replay else _spare_pages(options, spec, page_bytes))
    else:
        half = cache.prefix_mib << 19
        blocks, pages = (2 * half // block_bytes, 0) if replay else (half // block_bytes, half // page_bytes)
        limits = dataclasses.replace(limits, max_blocks=blocks, max_pages=pages)
        plan = PrefixPlan(limits, 0 if cache.num_blocks else blocks, pages)
    why = _hindrance(options, spec, geometry, longest, limits, kept)
    if not why:
        return plan
    given = [key for key in _OWN_OPTIONS if key in options.origins]
    if given:
        raise ConfigError(
            "the prefix cache could never serve a request",
            where=f"{given[0]}, from {options.origins[given[0]]}",
            why=why,
            fix="change that, or set cache.prefix to off",
        )
    # Who set no option of the caches did not ask for this one: such a note may be left out where texts are read.
    unasked = not any(key.startswith("cache.") for key in options.origins)
    _LOG.warning("the prefix cache is off, for it could never serve a request: %s", why, extra={"unasked": unasked})
    return PrefixPlan()


def _spare_pages(options: EngineConfig, spec: CacheSpec, page_bytes: int) -> int:
    """As many pages as running requests can need, within a quarter of the memory that those leave."""
    if options.cache.memory_mib is None:
        return spec.num_window_blocks
    left = (options.cache.memory_mib << 20) - spec.num_window_blocks * page_bytes
    return min(spec.num_window_blocks, max(0, left // 4 // page_bytes))


def _hindrance(
    options: EngineConfig, spec: CacheSpec, geometry: WindowGeometry, longest: int, limits: PrefixLimits, kept: int
) -> str:
    """Why no request can be resumed from the cache; empty if some can."""
    size = spec.block_size
    most = (longest - 2) // size  # one token is computed and one drawn
    if not most:
        return f"a request of at most {longest} tokens has no full block of {size} before its last prompt token"
    pages = min(blocks_for(geometry.window - 1, spec.window_block), size // spec.window_block)
    if limits.max_blocks == 0 or limits.max_pages is not None and not limits.replay and limits.max_pages < pages:
        return (
            f"half of cache.prefix_mib ({options.cache.prefix_mib}) does not hold one block "
            f"({limits.block_bytes} bytes), or not the {pages} window pages ({limits.page_bytes} bytes each) after it"
        )
    if options.cache.num_blocks == 1:
        return "cache.num_blocks is 1, and a cached block and the one that follows are two"
    if limits.replay and most * size < blocks_for(limits.replay, size) * size + size:
        return f"replay computes {limits.replay} tokens again, and a request has at most {longest}"
    if longest - 1 - kept < size:
        return f"model.swa_replay computes the last {kept} tokens of a prompt, and a request has at most {longest}"
    return ""


def cache_fingerprint(plan: Plan, checkpoint: Checkpoint, spec: CacheSpec, caches: ModelCaches) -> bytes:
    """What, besides the request, decides the bits of a cached block: model, formats, sizes, contract, device."""
    named = (("main", caches.main), ("index", caches.index), ("window", caches.window))
    layouts = {f"{kind}.{layer}": (c.layout, c.memory_layout) for kind, part in named for layer, c in part.items()}
    return fingerprint_of(
        {
            "contract": CONTRACT_VERSION,
            "backend": dict(plan.backend.fingerprint()),
            "implementations": sorted({(b.op, b.impl) for b in plan.bindings}),
            "config": repr(checkpoint.config),
            "tensors": [repr(checkpoint.spec(name)) for name in checkpoint.names()],
            "blocks": (spec.block_size, spec.window_block),
            "layouts": layouts,
        }
    )


def identity_of(table: RequestTable, slot: int, salt: str = "") -> Identity:
    """What decides the cache contents of a request besides its tokens.

    Args:
        table: the requests.
        slot: one of them.
        salt: of the request; see `Identity`.
    """
    extras = table.extras(slot)
    digest = bytes(table.media_digest[slot])
    media = digest if any(digest) else b""
    roles = table.roles_array()[slot] if table.has_roles[slot] else None
    starts = [] if roles is None else [int((roles != 0).argmax())]
    if extras.embed_positions is not None and len(extras.embed_positions):
        starts.append(int(extras.embed_positions.min()))
    return Identity(
        salt=salt,
        media=media,
        roles=None if roles is None else roles.copy(),
        media_start=min(starts, default=0),
        private=extras.embed_rows is not None and not media,
    )

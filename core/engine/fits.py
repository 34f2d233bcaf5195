"""Whether a request can be served at all, even alone."""

from __future__ import annotations

from tandem.cache.space import Pools, Tables
from tandem.cache.tables import blocks_for
from tandem.engine.plan import SchedulerLimits
from tandem.engine.requests import RequestTable
from tandem.engine.spans import longest_span
from tandem.errors import CapacityError, ConfigError, RequestError


def check_limits(pools: Pools, tables: Tables, limits: SchedulerLimits) -> None:
    """Refuse limits that tables or pools do not allow.

    Raises:
        ConfigError: says which.
    """
    geometry = tables.window.geometry
    if (
        geometry.longest_chunk < limits.max_tokens_per_step
        or geometry.steps_in_flight < limits.max_in_flight
        or geometry.max_draft < limits.draft_tokens
    ):
        raise ConfigError(
            "the window table is too narrow for the scheduler",
            where="Scheduler",
            why=f"{geometry} against {limits}",
            fix="make longest_chunk max_tokens_per_step, steps_in_flight max_in_flight, max_draft draft_tokens",
        )
    pages = geometry.pages(1 + limits.draft_tokens)
    if pools.window.num_blocks < pages:
        raise ConfigError(
            "the window pool cannot serve one request",
            where="Scheduler",
            why=f"it has {pools.window.num_blocks} blocks, one request needs {pages}",
            fix="give the window pool more blocks",
        )


def check_fits(slot: int, table: RequestTable, pools: Pools, tables: Tables, limits: SchedulerLimits) -> None:
    """Refuse a request that would not fit even alone.

    Raises:
        RequestError: an image span of it is longer than a step.
        CapacityError: pools are too small for it.
    """
    length = int(table.limit[slot]) - 1  # the last token is drawn and never computed
    blocks = blocks_for(length, tables.main.block_size)
    if blocks > pools.main.num_blocks:
        raise CapacityError(
            "a request can never fit into the cache",
            where=f"prompt of {table.prompt_len[slot]} tokens, max_tokens {table.max_tokens[slot]}",
            why=f"it needs {blocks} blocks, the cache has {pools.main.num_blocks}",
            fix="shorten the prompt, lower max_tokens, or give the cache more blocks",
        )
    span = (
        longest_span(table.roles_array()[slot, : table.prompt_len[slot]]) if table.has_roles[slot] else 0
    )
    if span > limits.max_tokens_per_step:
        raise RequestError(
            "an image span is longer than a step",
            where="roles",
            why=f"it has {span} tokens, a step has {limits.max_tokens_per_step} rows",
            fix="use a smaller image, or raise scheduler.max_tokens_per_step",
        )
    pages = tables.window.geometry.pages(max(1, span))
    if pages > pools.window.num_blocks:
        raise CapacityError(
            "an image span can never fit into the window cache",
            where="roles",
            why=f"{span} tokens need {pages} blocks, there are {pools.window.num_blocks}",
            fix="use a smaller image, or give the window cache more blocks",
        )

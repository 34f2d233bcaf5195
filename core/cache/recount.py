"""Recounts a prefix cache from its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tandem.cache.nodes import Node, Pages, Tree
from tandem.cache.pool import AccountingError

if TYPE_CHECKING:
    from tandem.cache.space import Pools


def recount(pools: Pools, tree: Tree, order: Pages) -> None:
    """Compare the counts in use with what the nodes say.

    Raises:
        AccountingError: they differ.
    """
    children: dict[Node, int] = {}
    blocks: list[int] = []
    pages: list[int] = []
    for node in tree:
        blocks.append(node.block)
        if node.pages is not None:
            pages += node.pages.tolist()
        if node.parent is not None:
            children[node.parent] = children.get(node.parent, 0) + 1
            if not node.parent.alive:
                raise _miscounted("a cached block has lost its parent")
    for node in tree:
        if node.children != children.get(node, 0):
            raise _miscounted("a cached block counts its children wrong")
        if not (node.children or node.queued):
            raise _miscounted("a leaf is not in the order of leaves")
    if {id(node) for node in order.in_order()} != {id(node) for node in tree if node.pages is not None}:
        raise _miscounted("the order of pages is not that of the nodes that hold pages")
    for pool, ids in ((pools.main, blocks), (pools.window, pages)):
        if sorted(ids) != pool.kept.tolist():
            raise _miscounted("the cache holds other blocks than its nodes say")
        if pool.num_idle != int(np.count_nonzero(pool.ref_counts[pool.kept] == 1)):
            raise _miscounted("idle blocks are counted wrong")


def _miscounted(what: str) -> AccountingError:
    return AccountingError(what, where="PrefixCache.check", why="found by recounting", fix="report this")

"""The tree of cached blocks, and the order in which they are given up.

A node is one block of one prefix: its parent is the block before.  The least recently used leaf goes first; a
node with cached children stays until they are gone, and using a node counts as using all before it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Node:
    """One cached block.

    Args:
        key: its name.
        parent: the block before it; None for the first of a sequence.
        tokens: int32 [block_size], what it was computed from.
        context: what else it was computed from; see `tandem.cache.hashing.Identity.context`.
        block: id in the main pool.
        used: time of the last use.
        pages: ids in the window pool of the pages that rows after the block may read; None where not held.
        children: cached blocks that follow.
        resumed: whether a request was resumed right after it.
        alive: whether it is in the cache.
        queued: whether it waits in the order of leaves.
    """

    key: bytes
    parent: Node | None
    tokens: Int32
    context: bytes
    block: int
    used: int
    pages: Int32 | None = None
    children: int = 0
    resumed: bool = False
    alive: bool = True
    queued: bool = False

    def holds(self, parent: Node | None, tokens: Int32, context: bytes) -> bool:
        """Whether it is the block of these tokens after that parent; equal keys alone prove nothing."""
        return self.parent is parent and self.context == context and np.array_equal(self.tokens, tokens)


class Tree:
    """All nodes by key, with leaves in the order of their last use."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, Node] = {}
        # (last use, serial, leaf); an entry may be out of date, in which case it is early, never late.
        self._leaves: list[tuple[int, int, Node]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def get(self, key: bytes) -> Node | None:
        """The node of this name."""
        return self._nodes.get(key)

    def add(self, node: Node) -> None:
        """Insert a leaf."""
        self._nodes[node.key] = node
        if node.parent is not None:
            node.parent.children += 1
        self._queue(node)

    def remove(self, leaf: Node) -> None:
        """Take out a leaf; the time of its last use is passed on to its parent."""
        del self._nodes[leaf.key]
        leaf.alive = False
        parent = leaf.parent
        if parent is not None:
            parent.children -= 1
            parent.used = max(parent.used, leaf.used)
            if not parent.children:
                self._queue(parent)

    def pop_leaf(self) -> Node | None:
        """The least recently used leaf, no longer queued (see `requeue`); None when none is queued."""
        while self._leaves:
            used, _, node = heapq.heappop(self._leaves)
            node.queued = False
            if not node.alive or node.children:
                continue
            if node.used == used:
                return node
            self._queue(node)
        return None

    def requeue(self, leaf: Node) -> None:
        """Put back a leaf that `pop_leaf` gave and that stays."""
        self._queue(leaf)

    def _queue(self, node: Node) -> None:
        if node.queued:
            return
        node.queued = True
        self._serial += 1
        heapq.heappush(self._leaves, (node.used, self._serial, node))


class Pages:
    """Nodes that hold window pages, in the order in which they give them up.

    Pages are far bigger per token than blocks and rarely needed inside a prompt: requests are resumed where an
    earlier one ended or where prompts part.  So nodes inside a prompt are *cold* until a request is resumed
    there; cold ones go first, oldest first, then the others, least recently used first.
    """

    def __init__(self) -> None:
        self._cold: OrderedDict[Node, None] = OrderedDict()
        self._warm: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cold) + len(self._warm)

    def warm(self, node: Node) -> None:
        """Note a use, or that the node is the end of a prompt or a place where prompts part."""
        self._cold.pop(node, None)
        self._warm[node] = None
        self._warm.move_to_end(node)

    def cool(self, node: Node) -> None:
        """Note that the node is inside a prompt."""
        self._warm.pop(node, None)
        self._cold[node] = None

    def remove(self, node: Node) -> None:
        """Forget a node whose pages are gone."""
        self._cold.pop(node, None)
        self._warm.pop(node, None)

    def in_order(self) -> Iterator[Node]:
        """Nodes, first to give up first; do not change the order while iterating."""
        yield from self._cold
        yield from self._warm

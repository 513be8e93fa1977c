"""The running nodes of one broker, with the addresses that clients use."""

from __future__ import annotations

from typing import Iterator

from spark_groupsource.model import Node


class RunningNodes:
    """Nodes that accept connections, in the order of their ids."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def get(self, node_id: int) -> Node | None:
        """Returns the node, None when it does not run."""
        return self._nodes.get(node_id)

    def add(self, node: Node) -> None:
        """Adds a node, or replaces its address."""
        self._nodes = dict(sorted({**self._nodes, node.node_id: node}.items()))

    def remove(self, node_id: int) -> None:
        """Removes a node, if it runs."""
        self._nodes.pop(node_id, None)

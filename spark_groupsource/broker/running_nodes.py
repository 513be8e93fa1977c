"""The running nodes of one broker, with the addresses that clients use."""

from __future__ import annotations

from typing import Iterator, Mapping

from spark_groupsource.model import Node


class RunningNodes:
    """Nodes that accept connections, in the order of their ids, with their addresses by listener.

    A response names the nodes by their addresses of the listener that has received the request, as in Kafka.
    """

    def __init__(self) -> None:
        self._nodes: dict[int, Mapping[str, Node]] = {}

    def ids(self) -> tuple[int, ...]:
        """Returns the ids of the running nodes."""
        return tuple(self._nodes)

    def at(self, listener: str) -> Iterator[Node]:
        """Yields the nodes with their addresses of a listener."""
        for node_id in self._nodes:
            node = self.get(node_id, listener)
            if node is not None:
                yield node

    def get(self, node_id: int, listener: str) -> Node | None:
        """Returns a node with its address of a listener, None when it does not run."""
        return self._nodes.get(node_id, {}).get(listener)

    def endpoints(self, node_id: int) -> Mapping[str, Node]:
        """Returns a node by listener, empty when it does not run."""
        return self._nodes.get(node_id, {})

    def add(self, node_id: int, endpoints: Mapping[str, Node]) -> None:
        """Adds a node, or replaces its addresses."""
        self._nodes = dict(sorted({**self._nodes, node_id: endpoints}.items()))

    def remove(self, node_id: int) -> None:
        """Removes a node, if it runs."""
        self._nodes.pop(node_id, None)

"""What the principal of a request may access."""

from __future__ import annotations

import copy
from typing import Any, Callable, Iterable, NamedTuple

from spark_groupsource.broker.acls import CLUSTER_NAME, Authorizer, Operation, ResourceType
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.errors import ApiError


class Verdict(NamedTuple):
    """What is left of a request, or its response if nothing is; `complete` changes the response of the handler."""

    request: Any = None
    response: Any = None
    complete: Callable[[Any], Any] | None = None


class Access:
    """What the principal of one request may do."""

    def __init__(self, broker: Broker, authorizer: Authorizer, context: ApiRequestContext) -> None:
        self.broker = broker
        self.version = context.api_version
        self._authorizer = authorizer
        self._context = context

    def can(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        context = self._context
        return self._authorizer.authorize(context.principal, context.client_host, operation, kind, name)

    def can_any(self, operation: Operation, kind: ResourceType) -> bool:
        context = self._context
        return self._authorizer.authorize_any(context.principal, context.client_host, operation, kind)

    def cluster(self, operation: Operation) -> bool:
        return self.can(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def group(self, operation: Operation, name: str) -> bool:
        return self.can(operation, ResourceType.GROUP, name)

    def transactional_id(self, operation: Operation, name: str) -> bool:
        return self.can(operation, ResourceType.TRANSACTIONAL_ID, name)

    def topic(self, operation: Operation, topic: Any) -> bool:
        """Whether a topic, given by name or by an object of a request, may be accessed; True for an unknown id."""
        name = topic if isinstance(topic, str) else self.topic_name(topic)
        return not name or self.can(operation, ResourceType.TOPIC, name)

    def topic_name(self, topic: Any) -> str:
        """Returns the name of a topic that a request identifies by name or id, empty for an unknown id."""
        name = getattr(topic, "name", None) or getattr(topic, "topic", None)
        topic_id = getattr(topic, "topic_id", None)
        if not name and topic_id is not None:
            try:
                name = self.broker.partitions.topic_name(topic_id)
            except ApiError:  # the handler reports an unknown id
                name = ""
        return str(name or "")

    def split(self, operation: Operation, topics: Iterable[Any]) -> tuple[list[Any], list[Any]]:
        """Returns the topics that may be accessed, and the others."""
        allowed: list[Any] = []
        denied: list[Any] = []
        for topic in topics:
            (allowed if self.topic(operation, topic) else denied).append(topic)
        return allowed, denied

    def split_names(
        self, operation: Operation, kind: ResourceType, names: Iterable[str]
    ) -> tuple[list[str], list[str]]:
        """Returns the names of resources that may be accessed, and the others."""
        allowed: list[str] = []
        denied: list[str] = []
        for name in names:
            (allowed if self.can(operation, kind, name) else denied).append(name)
        return allowed, denied

    def mask(self, operations: Any, kind: ResourceType, name: str) -> Any:
        """Returns those of the operations in a response that are allowed."""
        if operations is None:
            return None
        return frozenset(each for each in operations if self.can(Operation(each), kind, name))


def replaced(request: Any, **changes: Any) -> Any:
    changed = copy.copy(request)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def appended(field: str, entries: list[Any]) -> Callable[[Any], Any] | None:
    """Returns the function that appends entries to a field of the response."""
    if not entries:
        return None

    def complete(response: Any) -> Any:
        setattr(response, field, [*getattr(response, field), *entries])
        return response

    return complete

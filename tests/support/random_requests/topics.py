"""Random requests that create, change and describe topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.compared_sides import ComparedSide
from support.random_requests.actions import TOPICS, Action, Choices, Weighted
from support.request_cases import admin, placement

from spark_groupsource.wire.api_keys import ApiKey


class TopicRequests(Choices):
    """Requests of topics."""

    def kinds(self) -> Weighted:
        """As in `Choices`."""
        return [
            (self.create_topic, 2), (self.delete_topic, 1), (self.add_partitions, 1), (self.alter_topic, 1),
            (self.describe_configs, 1), (self.metadata, 2), (self.create_several, 1), (self.delete_by_id, 1),
            (self.describe_pages, 1), (self.log_dirs, 1), (self.elect, 1), (self.metadata_of_several, 1),
        ]  # fmt: skip

    def create_topic(self) -> Action:
        topic, count = self.pick(*TOPICS), self.mostly(self.pick(1, 2), 0, -1, -2)
        settings = self.mostly({}, {"cleanup_policy": "compact"}, {"max_message_bytes": "300"}, {"retention_ms": "x"})
        build = admin.create(topic, partitions=count, **{"retention_ms": "-1", **settings})
        return self.change(ApiKey.CREATE_TOPICS, f"{topic} {count} {settings}", build, since=4)

    def delete_topic(self) -> Action:
        topic = self.topic()
        return self.change(ApiKey.DELETE_TOPICS, topic, admin.delete(topic), _forget_topic(topic))

    def add_partitions(self) -> Action:
        topic, count = self.topic(), self.pick(0, 1, 2, 3)
        return self.change(ApiKey.CREATE_PARTITIONS, f"{topic} {count}", admin.more((topic, count)))

    def alter_topic(self) -> Action:
        topic, operation = self.topic(), self.pick(0, 1, 2, 3)
        # settings without an effect on later requests, because Kafka applies a change after its response
        setting = self.pick(("retention.bytes", "1000000"), ("cleanup.policy", "delete"), ("segment.bytes", "x"))
        build = admin.change((admin.TOPIC, topic, [(setting[0], operation, setting[1])]))
        return self.change(ApiKey.INCREMENTAL_ALTER_CONFIGS, f"{topic} {setting} {operation}", build)

    def describe_configs(self) -> Action:
        topic = self.topic()
        build = admin.describe_configs((admin.TOPIC, topic, ["retention.bytes", "cleanup.policy"]))
        return self.repeatable(ApiKey.DESCRIBE_CONFIGS, topic, build)

    def create_several(self) -> Action:
        """Valid, invalid and repeated names; some requests check only."""
        names = [self.pick("t1", "t2", "t2", "a b", ".") for _ in range(2)]
        assigned = self.mostly((), ((0, [1]), (1, [1])), ((1, [1]),), ((0, [1, 1]),), ((0, [7]),), ((0, []),))
        count, replicas = (-1, -1) if assigned else (self.mostly(1, -1, 0), self.mostly(1, -1, 2, 0))
        validate = self.pick(True, True, False)
        text = f"{names} {count} x {replicas} {assigned} validate {validate}"
        build = admin.create(
            *names, partitions=count, replicas=replicas, assignments=assigned, validate=validate, retention_ms="-1"
        )
        return self.change(ApiKey.CREATE_TOPICS, text, build, since=4)

    def delete_by_id(self) -> Action:
        topic = self.topic()
        build = admin.delete(ids=(topic,))
        return self.change(ApiKey.DELETE_TOPICS, f"id of {topic}", build, _forget_topic(topic), since=6)

    def describe_pages(self) -> Action:
        names, limit = [self.topic() for _ in range(2)], self.pick(1, 2, 3, 2_000)
        cursor = self.pick(None, (names[0], self.pick(0, 1, 2)))
        build = placement.pages(*names, limit=limit, cursor=cursor)
        return self.repeatable(ApiKey.DESCRIBE_TOPIC_PARTITIONS, f"{names} limit {limit} cursor {cursor}", build)

    def log_dirs(self) -> Action:
        topic = self.topic()
        return self.repeatable(ApiKey.DESCRIBE_LOG_DIRS, topic, admin.log_dirs((topic, [0, 1])))

    def elect(self) -> Action:
        topic, kind = self.topic(), self.mostly(0, 1)
        return self.change(ApiKey.ELECT_LEADERS, f"{topic} {kind}", placement.elect((topic, [0, 1]), kind=kind))

    def metadata_of_several(self) -> Action:
        names, by_id = [self.topic() for _ in range(3)], self.pick(True, False)
        build = admin.metadata(*names, by_id=by_id)
        return self.repeatable(ApiKey.METADATA, f"{names} by id {by_id}", build, since=12 if by_id else 4)

    def metadata(self) -> Action:
        topic = self.topic()
        return self.repeatable(ApiKey.METADATA, topic, admin.metadata(topic), since=4)


def _forget_topic(topic: str) -> Callable[[ComparedSide, Any], None]:
    def read(side: ComparedSide, response: Any) -> None:
        side.broker.forget(topic)
        side.sequences = {key: value for key, value in side.sequences.items() if key[1] != topic}

    return read

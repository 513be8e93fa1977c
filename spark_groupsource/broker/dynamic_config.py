"""Settings of the broker that change while it runs: which may, what was given, and what holds then.

They are given to one node, by its id, or to all of them, under the empty name; what one node is given comes first,
then what all are given, then what the broker was started with. Only what a topic falls back to and two intervals take
effect: the rest is given at the start. Names this broker has no use for are kept and change nothing, as in Kafka.

Source: KIP-226; Kafka `DynamicBrokerConfig`, `ConfigAdminManager`.
"""

from __future__ import annotations

from typing import Mapping, Sequence

from spark_groupsource.broker.config import BROKER_SETTINGS, BrokerConfig, changed_config
from spark_groupsource.errors import ApiError, ConfigurationError, ErrorCode, StorageError
from spark_groupsource.storage.data_directory import DataDirectory

ALL_NODES = ""
STATIC_SOURCE, DEFAULT_SOURCE = 4, 5
NODE_SOURCE, ALL_NODES_SOURCE = 2, 3
# a Kafka that elects eligible replicas gives it to all nodes at its first start (KIP-966)
_GIVEN_TO_ALL = {"min.insync.replicas": "1"}


class DynamicSettings:
    """What was given to the nodes of one broker while it ran, over `static`, what it was started with."""

    def __init__(self, data: DataDirectory, static: BrokerConfig, node_ids: Sequence[int]) -> None:
        self._data = data
        self._static = static
        self._node_ids = node_ids

    def of(self, name: str) -> Mapping[str, str]:
        """What was given under one name: a node's id, or empty for all."""
        given = self._data.broker_settings.get(name, {})
        return {**_GIVEN_TO_ALL, **given} if name == ALL_NODES else given

    def effective(self) -> BrokerConfig:
        """What holds now."""
        config = self._static
        for name in (ALL_NODES, *map(str, self._node_ids)):
            known = {key: value for key, value in self.of(name).items() if key in BROKER_SETTINGS}
            config = changed_config(known, config)
        return config

    def source(self, name: str, node_id: int) -> int:
        """Where the value of a broker setting comes from, as a config source of DescribeConfigs."""
        key = BROKER_SETTINGS.get(name)
        if key is None:
            return DEFAULT_SOURCE
        if name in self.of(str(node_id)):
            return NODE_SOURCE
        if name in self.of(ALL_NODES):
            return ALL_NODES_SOURCE
        return DEFAULT_SOURCE if self._static.value(name) == key.default else STATIC_SOURCE

    def put(self, name: str, settings: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Gives one node, or all, other settings altogether; durable when this returns.

        Raises: ApiError.
        """
        changed = {key for key in {*settings, *self.of(name)} if settings.get(key) != self.of(name).get(key)}
        known = {key: BROKER_SETTINGS[key] for key in sorted(changed) if key in BROKER_SETTINGS}
        fixed = [name for name, key in known.items() if not key.dynamic]
        if fixed:
            text = f"Cannot update these configs dynamically: [{', '.join(fixed)}]. They are given at the start."
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        if known and name != ALL_NODES and len(self._node_ids) > 1:
            text = "the nodes of this process share their logs; give it to all, under the empty name"
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{', '.join(known)}: {text}")
        try:
            changed_config({key: settings[key] for key in known if key in settings}, self._static)
        except ConfigurationError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error
        if validate_only:
            return
        try:
            self._data.put_broker_settings(name, settings)
        except StorageError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

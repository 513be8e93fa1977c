"""Dynamic broker settings: settings that clients alter while the broker runs.

They are stored under the id of a node, or under the empty name for all nodes. Precedence: settings of the node, of all
nodes, of the start of the broker. Only rows with `dynamic` can be altered; as in Kafka, unknown names are stored
without effect.

Source: KIP-226; Kafka `DynamicBrokerConfig`, `ConfigAdminManager`.
"""

from __future__ import annotations

from typing import Mapping, Sequence

from spark_groupsource.broker.config import BROKER_SETTINGS, BrokerConfig, changed_config
from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.errors import ApiError, ConfigurationError, ErrorCode, StorageError

ALL_NODES = ""
STATIC_SOURCE, DEFAULT_SOURCE = 4, 5
NODE_SOURCE, ALL_NODES_SOURCE = 2, 3
MAX_SETTINGS_BYTES = 65_536
"""Names and values of the dynamic settings of one node, or of all nodes."""
# Kafka with eligible leader replicas stores its static value for all nodes at its first start (KIP-966)
_INITIAL_FOR_ALL_NODES = "min.insync.replicas"


class DynamicSettings:
    """Dynamic settings of the nodes of one broker, over `static`, its settings at start."""

    def __init__(self, data: DataDirectory, static: BrokerConfig, node_ids: Sequence[int]) -> None:
        self._data = data
        self._static = static
        self._node_ids = node_ids

    def of(self, name: str) -> Mapping[str, str]:
        """Returns the dynamic settings under one name: the id of a node, or empty for all nodes."""
        altered = self._data.broker_settings.get(name, {})
        if name != ALL_NODES:
            return altered
        return {_INITIAL_FOR_ALL_NODES: str(self._static.value(_INITIAL_FOR_ALL_NODES)), **altered}

    def effective(self) -> BrokerConfig:
        """Returns the settings in effect."""
        config = self._static
        for name in (ALL_NODES, *map(str, self._node_ids)):
            known = {key: value for key, value in self.of(name).items() if key in BROKER_SETTINGS}
            config = changed_config(known, config)
        return config

    def source(self, name: str, node_id: int) -> int:
        """Returns the config source of a broker setting in DescribeConfigs; the default for an unknown name."""
        key = BROKER_SETTINGS.get(name)
        if key is None:
            return DEFAULT_SOURCE
        if name in self.of(str(node_id)):
            return NODE_SOURCE
        if name in self.of(ALL_NODES):
            return ALL_NODES_SOURCE
        return DEFAULT_SOURCE if self._static.value(name) == key.default else STATIC_SOURCE

    def check(self, name: str, settings: Mapping[str, str]) -> None:
        """Checks the new dynamic settings of one node (its id) or of all nodes (empty name). Raises: ApiError."""
        changed = {key for key in {*settings, *self.of(name)} if settings.get(key) != self.of(name).get(key)}
        known = {key: BROKER_SETTINGS[key] for key in sorted(changed) if key in BROKER_SETTINGS}
        fixed = [name for name, key in known.items() if not key.dynamic]
        if fixed:
            text = f"Cannot update these configs dynamically: [{', '.join(fixed)}]. Set them when the broker starts."
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        if known and name != ALL_NODES and len(self._node_ids) > 1:
            text = "the nodes of this process share their logs. Alter them for all nodes (empty resource name)."
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Cannot update {', '.join(known)} for one node: {text}")
        try:
            changed_config({key: settings[key] for key in known if key in settings}, self._static)
        except ConfigurationError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error
        size = sum(len(key) + len(value) for key, value in settings.items())
        if size > MAX_SETTINGS_BYTES:
            text = f"Dynamic settings may have {MAX_SETTINGS_BYTES:,} bytes, the new ones have {size:,}."
            raise ApiError(ErrorCode.POLICY_VIOLATION, text)

    def put(self, name: str, settings: Mapping[str, str]) -> None:
        """Replaces the dynamic settings under one name; durable on return. May run in any thread.

        Raises: ApiError.
        """
        try:
            self._data.put_broker_settings(name, settings)
        except StorageError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

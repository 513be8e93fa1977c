"""Requests to logs, whose steps are run at once."""

from __future__ import annotations

from typing import Mapping

from spark_groupsource.broker.storage.log_manager import LogManager, TopicPlan
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.errors import ApiError
from spark_groupsource.model import TopicPartition


def create_topic(logs: LogManager, name: str, partition_count: int, settings: Mapping[str, str | None]) -> None:
    (created,) = run_at_once(logs.create_topics([TopicPlan(name, partition_count, settings)]))
    if isinstance(created, ApiError):
        raise created


def delete_topic(logs: LogManager, name: str) -> None:
    run_at_once(logs.remove_topic(name))
    run_at_once(logs.delete_files(name))


def delete_records(logs: LogManager, topic_partition: TopicPartition, before_offset: int) -> int:
    """Returns the new log start offset."""
    offset = logs.new_log_start_offset(topic_partition, before_offset)
    for error in run_at_once(logs.checkpoints.log_start_offsets({topic_partition: offset})).values():
        raise error
    return logs.partition(*topic_partition).log.log_start_offset

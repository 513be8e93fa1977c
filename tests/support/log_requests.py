"""Requests to logs, whose steps are run at once."""

from __future__ import annotations

from typing import Mapping

from spark_groupsource.broker.storage.log_manager import LogManager
from spark_groupsource.broker.storage.steps import run_steps
from spark_groupsource.model import TopicPartition


def create_topic(logs: LogManager, name: str, partition_count: int, settings: Mapping[str, str | None]) -> None:
    run_steps(logs.create_topic_steps(name, partition_count, settings))


def delete_topic(logs: LogManager, name: str) -> None:
    run_steps(logs.remove_topic_steps(name))
    run_steps(logs.delete_files_steps(name))


def delete_records(logs: LogManager, topic_partition: TopicPartition, before_offset: int) -> int:
    """Returns the new log start offset."""
    offset = logs.new_log_start_offset(topic_partition, before_offset)
    for error in run_steps(logs.checkpoints.log_start_offsets_steps({topic_partition: offset})).values():
        raise error
    return logs.partition(*topic_partition).log.log_start_offset

"""Interfaces that the coordinators use of the broker."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Callable, Coroutine, Mapping

from spark_groupsource.broker.leaders import Leaders
from spark_groupsource.broker.periodic_work import StartTask
from spark_groupsource.broker.running_nodes import RunningNodes
from spark_groupsource.broker.state_budget import StateBudget
from spark_groupsource.broker.storage.log_manager import LogManager
from spark_groupsource.broker.storage.reporter import Reporter
from spark_groupsource.common.clock import Clock
from spark_groupsource.common.timers import Timers
from spark_groupsource.log_text import describe_error
from spark_groupsource.model import TopicPartition


@dataclass(frozen=True)
class CoordinatorServices:
    """Logs, leaders and timers for a coordinator.

    Attributes: `start_task`, runs work beside the requests; `ensure_topic`, creates a topic (name, partition count,
    settings) unless it exists, raises ApiError; `on_append`, is called with each partition and the appended bytes, and
    completes delayed fetches; `budget`, memory of all state.
    """

    partitions: LogManager
    leaders: Leaders
    nodes: RunningNodes
    timers: Timers
    clock: Clock
    start_task: StartTask
    ensure_topic: Callable[[str, int, Mapping[str, str]], Coroutine[Any, Any, None]]
    on_append: Callable[[TopicPartition, int], None]
    report: Reporter
    budget: StateBudget


def report_unexpected(report: Reporter, entity: str, error: Exception) -> None:
    """Reports an error that a state machine raised: the request gets UNKNOWN_SERVER_ERROR."""
    text = f"Unexpected error in a request; responding UNKNOWN_SERVER_ERROR: {describe_error(error)}."
    report(f"[{entity}] {text}", logging.ERROR)

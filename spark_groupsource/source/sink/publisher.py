"""Publishes the output of tasks in a transaction."""

from __future__ import annotations

from typing import Sequence

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.options.sink_options import SinkOptions
from spark_groupsource.source.sink.output_task import TaskOutput


def publish(options: SinkOptions, outputs: Sequence[TaskOutput], batch_id: int | None, driver: int) -> None:
    """Publishes what the tasks of one batch have encoded.

    Args:
        batch_id: of the micro-batch; None in a batch query.
        driver: process id of the driver JVM.
    Raises: ConfigurationError.
    """
    raise ConfigurationError("Option kafka.transactional.id is not supported. Remove it.")

"""Metrics of the members of running queries on this machine."""

from __future__ import annotations

from spark_groupsource.cli.exporter_metrics import CONSUMER_METRICS, Sample
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.source.process.queries import all_reader_statuses


def query_samples(groups: NameSelection | None) -> list[Sample]:
    """Requests the metrics of each reader process of this user with this ``TMPDIR``; none without a reader.

    Raises: ConfigurationError if the directory for temporary files cannot be used.
    """
    found = []
    for status in all_reader_statuses():
        group = status["group"]
        if group is not None and (groups is None or groups.matches(group)):
            labels = (group, status["client_id"], status["query"] or "", str(status["reader_pid"]))
            metrics = status.get("metrics", {})
            found += [Sample(CONSUMER_METRICS[name], labels, value) for name, value in metrics.items()]
    return found

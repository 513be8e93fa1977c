"""Commit of a batch by the driver, in one transaction.

Spark calls it in a Python worker of the driver that it keeps for the next micro-batches; so connections are kept, too.
"""

from __future__ import annotations

import logging
from typing import Sequence

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.source.control_client import TransactionRequest
from spark_groupsource.source.options.sink_options import SinkOptions
from spark_groupsource.source.positions.published_progress import batch_writer
from spark_groupsource.source.sink.output_task import LARGE_BATCH_REMEDY, TaskOutput
from spark_groupsource.source.sink.publisher import Publication, publish
from spark_groupsource.source.sink.reader_sources import ReaderSources
from spark_groupsource.source.tasks.kept_clients import kept_client

_log = logging.getLogger(__name__)
# of the driver's heap
_SAFE_PART = 0.2
_clusters: dict[ClientSettings, ClusterClient] = {}


def commit_outputs(options: SinkOptions, outputs: Sequence[TaskOutput], batch_id: int | None, driver: int) -> None:
    """Publishes the output of a batch; does nothing if it was published before.

    Args:
        batch_id: number of the micro-batch; None in a batch query.
        driver: process id of the driver, whose readers are the sources of the query.
    Raises: as `publish`.
    """
    assert options.transactional_id is not None, "the tasks have written the records"
    size = sum(len(batch.data) for output in outputs for batch in output.batches)
    if options.driver_heap_bytes is not None and size > options.driver_heap_bytes * _SAFE_PART:
        _log.warning(
            "[transactional_id=%s] The batch has %d MB of records, and the driver has a heap of %d MB: larger batches "
            "may end it. %s",
            options.transactional_id,
            size >> 20,
            options.driver_heap_bytes >> 20,
            LARGE_BATCH_REMEDY,
        )
    query_id = next((output.query_id for output in outputs if output.query_id is not None), "")
    writer = batch_writer(options.txn_app_id, options.topic) if batch_id is None else query_id
    number = options.txn_version if batch_id is None else batch_id
    client = options.client
    cluster = kept_client(_clusters, client, lambda: ClusterClient(client.bootstrap, client), ClusterClient.close)
    try:
        request = TransactionRequest(
            transactional_id=options.transactional_id,
            producer_id=-1,
            producer_epoch=-1,
            query_id=query_id,
            cluster_id=cluster.metadata(()).cluster_id or "",
            batch=-1 if batch_id is None else batch_id,
        )
        publish(
            cluster,
            Publication(
                transactional_id=options.transactional_id,
                batches=[batch for output in outputs for batch in output.batches],
                writer=writer or None,
                number=-1 if number is None else number,
                topic=options.topic,
                settings=options.producer,
                skips_earlier=batch_id is None,
            ),
            ReaderSources(driver if batch_id is not None else None, request, options.producer.delivery_timeout_ms),
        )
    except GroupSourceError:
        # a connection may have caused the error; the next batch opens new ones
        _clusters.pop(client).close()
        raise

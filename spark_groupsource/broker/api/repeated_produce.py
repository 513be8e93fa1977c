"""Handler of Produce requests that a client repeats with other records.

A transactional batch, and one whose validation needs steps, are left to the handler of all Produce requests.
"""

from __future__ import annotations

from functools import partial
from typing import Callable

from spark_groupsource.broker.api.produce import ZSTD_SINCE, check_append, reject, topic_name
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.repeated_produce import PreparedProduce, prepare_produce
from spark_groupsource.broker.requests import NO_RESPONSE, ApiRequestContext, ResponseAction
from spark_groupsource.errors import ApiError
from spark_groupsource.records.header import has_transactional_flag
from spark_groupsource.storage.log_validator import ValidatedBatch, check_format
from spark_groupsource.wire.frames import EncodedResponse
from spark_groupsource.wire.messages import ApiMessage, ProduceRequest

# the time of a preparation grows with the request
_MAX_PREPARED_BYTES = 65_536


def repeated_produce(
    broker: Broker, context: ApiRequestContext, body: memoryview, decode: Callable[[], ProduceRequest]
) -> EncodedResponse | ApiMessage | ResponseAction | None:
    """Appends a batch; None: see `produce.produce`. Raises: as `produce.produce`."""
    leader = broker.leaders.only_leader()
    if leader is None or leader.node_id != context.node_id:
        return None
    client = (context.connection_id, context.api_version)
    found = broker.repeated_produces.find(client, body, partial(_prepare, broker, context, body, decode))
    if found is None:
        return None
    prepared, (number, start, end) = found
    records = body[start:end]
    if has_transactional_flag(records):
        return None
    try:
        partition = broker.partitions.partition(prepared.topic, number)
        header = check_format(records, context.api_version >= ZSTD_SINCE)
        if prepared.topic_id not in (None, partition.topic_id):
            return None
        timestamp_ms = broker.clock.timestamp_ms()
        batch = partition.validate(records, header, timestamp_ms)
        if not isinstance(batch, ValidatedBatch):
            broker.repeated_produces.drop(client)  # so that the next ones are not validated twice
            return None
        done = partition.append_validated(batch, timestamp_ms)
    except ApiError as error:
        return reject(broker, context, decode(), error)
    if done.size:
        broker.on_append(partition.topic_partition, done.size)
    return prepared.response(number, done, partition.log.log_start_offset) if prepared.acks else NO_RESPONSE


def _prepare(
    broker: Broker, context: ApiRequestContext, body: memoryview, decode: Callable[[], ProduceRequest]
) -> PreparedProduce | None:
    if len(body) > _MAX_PREPARED_BYTES:
        return None
    request = decode()
    topics = request.topic_data
    if request.transactional_id is not None or len(topics) != 1 or len(topics[0].partition_data) != 1:
        return None
    try:
        name = topic_name(broker, context, topics[0])
        number = topics[0].partition_data[0].index
        # not checked again: with one node, all replicas are in sync
        check_append(broker, context.node_id, request.acks, broker.partitions.partition(name, number))
    except ApiError:
        return None
    return prepare_produce(request, context.api_version, body, name)

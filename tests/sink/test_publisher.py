"""Transactions that publish a batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from uuid import uuid4

import pytest
from support.clients import open_cluster
from support.faulty_broker import faulty_broker
from support.read_back import messages_to_end
from support.sink_application import stable_end
from support.topics import create_topic

from spark_groupsource.client.cluster import error_rules
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.group_offsets import NO_MEMBER, CommittingMember
from spark_groupsource.client.records.producer_settings import ProducerSettings
from spark_groupsource.client.records.transactions import Transactions, is_producer_fenced
from spark_groupsource.errors import (
    BrokerError,
    ConfigurationError,
    ErrorCode,
    NetworkError,
    TransactionAbortedError,
)
from spark_groupsource.model import OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.encoded_batch import EncodedBatch
from spark_groupsource.source.positions.published_progress import (
    WriterProgress,
    offset_of_progress,
    progress_group,
    read_progress,
)
from spark_groupsource.source.sink import publisher
from spark_groupsource.source.sink.publisher import JoinedOffsets, Publication, publish


class FakeSources:
    """Sources whose batch ends at `digests`; `failures` are raised by the next calls of `join`."""

    def __init__(self, digests: Mapping[str, str] = {}, failures: list[Exception] | None = None) -> None:
        self.digests, self.failures = dict(digests), failures or []
        self.producers: list[ProducerIdAndEpoch] = []
        self.known: list[WriterProgress | None] = []

    def ends(self) -> Mapping[str, str]:
        return self.digests

    def join(self, producer: ProducerIdAndEpoch, known: WriterProgress | None) -> JoinedOffsets:
        self.producers.append(producer)
        self.known.append(known)
        if self.failures:
            raise self.failures.pop(0)
        return JoinedOffsets(self.digests, None)


@pytest.fixture(scope="module")
def client(cluster) -> Iterator[ClusterClient]:
    settings = {"retry_backoff_ms": "1", "retry_backoff_max_ms": "5", "default_api_timeout_ms": "20000"}
    with open_cluster(cluster.bootstrap_servers, **settings) as opened:
        yield opened


@pytest.fixture
def output(cluster, topic: str) -> TopicPartition:
    create_topic(cluster.bootstrap_servers, topic)
    return TopicPartition(topic, 0)


@pytest.fixture
def transactional_id() -> str:
    return f"T-{uuid4().hex[:8]}"


def batch(
    output: TopicPartition, transactional_id: str, number: int, count: int = 1, writer: str | None = "q"
) -> Publication:
    records = [Record(None, b"%d" % number, 0)] * count
    batches = [EncodedBatch(output, encode_batch(records), count)] if count else []
    return Publication(transactional_id, batches, writer, number, output.topic)


def end(client: ClusterClient, output: TopicPartition) -> int:
    """Returns the end of what a read_committed consumer may read, once no transaction is open."""
    return stable_end(client, output)


def progress(client: ClusterClient, transactional_id: str) -> list[WriterProgress]:
    """Returns the progress, once the last transaction has ended: Kafka writes its markers after EndTxn.

    Until then OffsetFetch of all partitions leaves out a group's only offset.
    """
    Transactions(client, transactional_id).init(60_000)
    return read_progress(client.fetch_committed(progress_group(transactional_id)).values())


def recorded_timeouts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the timeouts of the transactions that begin from now on."""
    begun: list[int] = []

    class Recorded(Transactions):
        def init(self, timeout_ms: int) -> ProducerIdAndEpoch:
            begun.append(timeout_ms)
            return super().init(timeout_ms)

    monkeypatch.setattr(publisher, "Transactions", Recorded)
    return begun


def test_output_and_progress_are_committed_together(client, output, transactional_id):
    assert publish(client, batch(output, transactional_id, 7, 3), FakeSources({"r": "d"}))
    # three records and the marker of the transaction
    assert end(client, output) == 4
    assert progress(client, transactional_id) == [WriterProgress("q", 7, {"r": "d"})]


def test_a_published_batch_is_not_published_again(client, output, transactional_id):
    sources = FakeSources({"r": "d"})
    publish(client, batch(output, transactional_id, 7), sources)
    assert not publish(client, batch(output, transactional_id, 7), sources)
    assert (end(client, output), len(sources.producers)) == (2, 1)


@pytest.mark.parametrize("batches_before", [0, 1])
def test_progress_of_a_former_coordinator_does_not_publish_a_batch_again(
    cluster, client, output, transactional_id, monkeypatch, batches_before
):
    """A coordinator that is cut off from its controller responds with older offsets, and rejects the transaction."""
    former: list[object] = []
    fetch = client.fetch_committed
    for number in range(7 - batches_before, 8):
        former.append(fetch(progress_group(transactional_id)))
        publish(client, batch(output, transactional_id, number), FakeSources({"r": "d"}))
    calls: list[str] = []

    def fetch_committed(group_id: str, *args: object, **options: object) -> object:
        calls.append(group_id)
        return former[-1] if len(calls) == 1 else fetch(group_id, *args, **options)

    monkeypatch.setattr(client, "fetch_committed", fetch_committed)
    assert not publish(client, batch(output, transactional_id, 7), FakeSources({"r": "d"}))
    assert progress(client, transactional_id) == [WriterProgress("q", 7, {"r": "d"})]
    values = [message.value() for message in messages_to_end(cluster.bootstrap_servers, output.topic, 1)]
    assert values == [b"%d" % number for number in range(7 - batches_before, 8)]


def test_a_coordinator_that_moves_after_it_has_stored_the_progress_begins_again(
    client, output, transactional_id, monkeypatch
):
    """The progress that is read from the next one does not show that the first one was no former coordinator."""
    begun, moved = recorded_timeouts(monkeypatch), [None]
    cached = client.cached_coordinator
    monkeypatch.setattr(client, "cached_coordinator", lambda key: moved.pop() if moved else cached(key))
    assert publish(client, batch(output, transactional_id, 7), FakeSources({"r": "d"}))
    assert len(begun) == 2 and progress(client, transactional_id) == [WriterProgress("q", 7, {"r": "d"})]


@pytest.mark.parametrize(("ends", "level"), [({}, "WARNING"), ({"r": "d"}, "INFO")])
def test_a_skipped_batch_is_reported_where_its_records_are_not_compared(
    client, output, transactional_id, caplog, ends, level
):
    publish(client, batch(output, transactional_id, 7, 3), FakeSources(ends))
    with caplog.at_level(logging.INFO, publisher.__name__):
        assert not publish(client, batch(output, transactional_id, 7, 2), FakeSources(ends))
    (line,) = caplog.records
    assert line.levelname == level
    if level == "WARNING":
        assert "Batch 7 was published before, so its 2 records are not written again." in line.getMessage()
        assert f"use another kafka.transactional.id than {transactional_id}" in line.getMessage()


def test_progress_that_the_brokers_do_not_store_is_an_error_that_names_the_setting(
    client, output, transactional_id
):
    long = "r" * 5_000
    with pytest.raises(BrokerError, match="needs 50.. bytes of the metadata.* Increase offset.metadata.max.bytes"):
        publish(client, batch(output, transactional_id, 7), FakeSources({long: "d"}))
    # nothing of the batch is visible, and no transaction remains open
    assert progress(client, transactional_id) == []
    assert publish(client, batch(output, transactional_id, 7), FakeSources({"r": "d"}))


def test_an_earlier_batch_than_the_published_one_is_an_error(client, output, transactional_id):
    publish(client, batch(output, transactional_id, 9), FakeSources())
    with pytest.raises(ConfigurationError, match="Batch 9 is committed, but batch 7 is replayed"):
        publish(client, batch(output, transactional_id, 7), FakeSources())
    assert end(client, output) == 2


def test_an_earlier_version_of_a_batch_write_is_skipped(client, output, transactional_id):
    versions = [replace(batch(output, transactional_id, number), skips_earlier=True) for number in (3, 2, 3, 4)]
    published = [publish(client, each, FakeSources()) for each in versions]
    assert (published, end(client, output)) == ([True, False, False, True], 4)


def test_other_records_with_the_number_of_the_published_batch_are_an_error(client, output, transactional_id):
    publish(client, batch(output, transactional_id, 9), FakeSources({"r": "d"}))
    with pytest.raises(ConfigurationError, match="Batch 9 is committed with other offsets of the source"):
        publish(client, batch(output, transactional_id, 9), FakeSources({"r": "e"}))


def test_another_writer_with_the_same_id_has_its_own_progress(client, output, transactional_id):
    publish(client, batch(output, transactional_id, 9), FakeSources())
    assert publish(client, batch(output, transactional_id, 1, writer="p"), FakeSources())
    assert not publish(client, batch(output, transactional_id, 9), FakeSources())
    assert progress(client, transactional_id) == [WriterProgress("p", 1), WriterProgress("q", 9)]


def test_each_of_many_applications_writes_its_version_once(client, output, transactional_id):
    count = 25
    for writer in [f"app-{number}/{output.topic}" for number in range(count)] * 2:
        publish(client, replace(batch(output, transactional_id, 1, writer=writer), skips_earlier=True), FakeSources())
    assert end(client, output) == 2 * count


def test_applications_without_room_for_their_progress_are_reported(client, output, transactional_id, caplog):
    for number in range(4):
        writer = f"{number}{'x' * 1_000}/{output.topic}"
        publish(client, batch(output, transactional_id, 1, writer=writer), FakeSources())
    (line,) = caplog.records
    assert line.levelname == "WARNING" and "The progress of 1 applications (txnAppId) has no room" in line.getMessage()


def test_the_progress_of_applications_is_kept_before_that_of_former_queries():
    queries = [WriterProgress(f"{number:032x}", number, {"r" * 8: "d" * 16}) for number in range(100)]
    applications = [WriterProgress(f"app/{number:050}", number) for number in range(80)]
    own = WriterProgress("q", 1)
    assert read_progress([offset_of_progress(own, [*queries, *applications[:30]])]) == [
        own, *applications[:30], *queries[:15]
    ]  # fmt: skip
    # what no other offset has is kept first
    elsewhere = [each.writer for each in applications[:40]]
    kept = read_progress([offset_of_progress(own, applications, elsewhere)])
    assert 41 < len(kept) < 81 and kept == [own, *applications[40:], *applications[: len(kept) - 41]]


def test_the_progress_of_the_last_writers_is_kept_within_the_metadata_of_an_offset():
    others = [WriterProgress(f"{number:032x}", number, {"r" * 8: "d" * 16}) for number in range(100)]
    offset = offset_of_progress(WriterProgress("q", 1), others)
    assert read_progress([offset]) == [WriterProgress("q", 1), *others[:15]]
    wide = [WriterProgress("w" * 200, 1, {f"{number:08x}": "d" * 16 for number in range(100)})]
    own = WriterProgress("q", 1)
    assert read_progress([offset_of_progress(own, [*wide, *wide])]) == [own, wide[0]]
    assert len(offset.metadata) < 4_096


@pytest.mark.parametrize("metadata", ["", "{}", "[1]", '[["q", 1, 2]]', "[[]]"])
def test_an_offset_that_is_no_progress_is_an_error(metadata):
    with pytest.raises(ConfigurationError, match="are not the progress of a query"):
        read_progress([OffsetAndMetadata(1, metadata, -1)])


def test_the_end_of_a_source_without_data_is_kept(client, output, transactional_id):
    publish(client, batch(output, transactional_id, 1), FakeSources({"r": "d", "s": "e"}))
    publish(client, batch(output, transactional_id, 2), FakeSources({"r": "f"}))
    assert progress(client, transactional_id) == [WriterProgress("q", 2, {"r": "f", "s": "e"})]


def test_a_batch_without_records_and_sources_commits_its_progress(client, output, transactional_id):
    publish(client, batch(output, transactional_id, 1, 0), FakeSources())
    assert (end(client, output), progress(client, transactional_id)) == (0, [WriterProgress("q", 1)])


def test_a_write_without_writer_and_records_commits_nothing(client, output, transactional_id):
    # a coordinator rejects the end of a transaction to which nothing was added
    assert publish(client, batch(output, transactional_id, -1, 0, writer=None), FakeSources())
    assert publish(client, batch(output, transactional_id, -1, writer=None), FakeSources())
    assert (end(client, output), progress(client, transactional_id)) == (2, [])


def test_a_write_without_writer_is_published_each_time(client, output, transactional_id):
    for _ in range(2):
        assert publish(client, batch(output, transactional_id, -1, writer=None), FakeSources())
    assert (end(client, output), progress(client, transactional_id)) == (4, [])


@pytest.mark.parametrize("lost", [3, 10_000])
def test_a_write_without_writer_whose_end_is_unknown_is_not_published_again(
    client, output, transactional_id, monkeypatch, lost
):
    """Its records have no progress, which would show that they are visible."""
    ends: list[bool] = []

    class Lost(Transactions):
        def end(self, *, is_committed: bool) -> None:
            super().end(is_committed=is_committed)
            ends.append(is_committed)
            if len(ends) <= lost:
                raise NetworkError("No response from the coordinator.")

    monkeypatch.setattr(publisher, "Transactions", Lost)
    settings = ProducerSettings() if lost == 3 else ProducerSettings(delivery_timeout_ms=100)
    given = replace(batch(output, transactional_id, -1, writer=None), settings=settings)
    if lost == 3:
        assert publish(client, given, FakeSources())
        assert len(ends) == lost + 1
    else:
        with pytest.raises(NetworkError, match=f"transactional.id={transactional_id} is committed is unknown: No resp"):
            publish(client, given, FakeSources())
    # one record, and one marker
    assert all(ends) and end(client, output) == 2


def test_an_error_without_a_known_effect_begins_another_transaction(client, output, transactional_id):
    sources = FakeSources(failures=[NetworkError("No response from the reader.")])
    assert publish(client, batch(output, transactional_id, 1), sources)
    first, second = sources.producers
    assert (first.producer_id, first.epoch) < (second.producer_id, second.epoch)
    # the record and the marker of the aborted transaction, and those of the committed one
    assert end(client, output) == 4


def test_the_error_of_a_fenced_member_ends_the_transaction(client, output, transactional_id):
    error = TransactionAbortedError("Group 'g' fenced member 'm'.")
    with pytest.raises(TransactionAbortedError, match="fenced member"):
        publish(client, batch(output, transactional_id, 1), FakeSources(failures=[error]))
    # without an open transaction the log is readable to its end
    assert (end(client, output), progress(client, transactional_id)) == (2, [])


def test_another_process_with_the_same_id_is_named(client, output, transactional_id):
    class Fenced(FakeSources):
        def join(self, producer: ProducerIdAndEpoch, known: WriterProgress | None) -> JoinedOffsets:
            Transactions(client, transactional_id).init(60_000)
            return super().join(producer, known)

    sources = Fenced()
    with pytest.raises(TransactionAbortedError, match=f"Another query uses kafka.transactional.id={transactional_id}"):
        publish(client, batch(output, transactional_id, 1), sources)
    assert (len(sources.producers), progress(client, transactional_id)) == (3, [])


def test_a_fenced_producer_cannot_commit(client, output, transactional_id):
    fenced = Transactions(client, transactional_id)
    fenced.init(60_000)
    fenced.add_partitions([output])
    Transactions(client, transactional_id).init(60_000)
    with pytest.raises(BrokerError) as raised:
        fenced.end(is_committed=True)
    assert is_producer_fenced(raised.value)


def test_a_timeout_above_the_limit_of_the_brokers_is_named(client, transactional_id):
    with pytest.raises(ConfigurationError, match="kafka.transaction.timeout.ms is larger than"):
        Transactions(client, transactional_id).init(2**31 - 1)


def test_a_partition_that_does_not_exist_is_named_without_further_transactions(
    client, transactional_id, topic, monkeypatch
):
    monkeypatch.setattr(error_rules, "UNKNOWN_TOPIC_TIMEOUT_MS", 50)
    begun = recorded_timeouts(monkeypatch)
    with pytest.raises(BrokerError, match=f"AddPartitionsToTxn .*{topic}-7.* failed: UNKNOWN_TOPIC_OR_PARTITION"):
        publish(client, batch(TopicPartition(topic, 7), transactional_id, 1), FakeSources())
    assert len(begun) == 1


def test_a_transaction_that_took_too_long_is_repeated_with_all_of_the_timeout(
    client, output, transactional_id, monkeypatch
):
    monkeypatch.setattr(publisher, "_MIN_TIMEOUT_MS", 300)
    begun = recorded_timeouts(monkeypatch)

    class Slow(FakeSources):
        def join(self, producer: ProducerIdAndEpoch, known: WriterProgress | None) -> JoinedOffsets:
            if not self.producers:
                # waits for the marker of the coordinator, which aborts the transaction
                assert end(client, output) == 2
            return super().join(producer, known)

    assert publish(client, batch(output, transactional_id, 1), Slow())
    assert begun == [310, 60_000]
    assert progress(client, transactional_id) == [WriterProgress("q", 1)]


def test_metadata_of_all_topics_are_requested_at_once(embedded, topic, transactional_id):
    names = [f"{topic}-{number}" for number in range(5)]
    for name in names:
        create_topic(embedded.bootstrap_servers, name)
    with (
        faulty_broker(embedded.bootstrap_servers, lambda: None) as proxy,
        open_cluster(str(proxy.address)) as other,
    ):
        batches = [EncodedBatch(TopicPartition(name, 0), encode_batch([Record(None, b"x", 0)]), 1) for name in names]
        publish(other, Publication(transactional_id, batches), FakeSources())
        # a transaction ends after its timeout, also while each of 10,000 topics is looked up
        assert [name for name, _, _ in proxy.requests].count("Metadata") <= 2


def test_offsets_of_an_unknown_member_are_rejected(client, output, transactional_id, group):
    transactions = Transactions(client, transactional_id)
    transactions.init(60_000)
    with pytest.raises(BrokerError) as raised:
        transactions.commit_offsets(group, {output: OffsetAndMetadata(1, "", -1)}, CommittingMember(1, "m"))
    assert raised.value.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
    transactions.end(is_committed=False)


def test_the_offsets_of_several_members_fail_one_by_one(client, output, transactional_id, group):
    transactions = Transactions(client, transactional_id)
    transactions.init(60_000)
    offsets = {output: OffsetAndMetadata(1, "", -1)}
    # without members, a group accepts those of a simple consumer
    errors = transactions.commit_offsets_each(
        group, [(CommittingMember(1, "m"), offsets), (NO_MEMBER, offsets), (CommittingMember(1, "n"), offsets)]
    )
    rejected = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}
    assert [isinstance(error, BrokerError) and error.code in rejected for error in errors] == [True, False, True]
    assert errors[1] is None
    transactions.end(is_committed=True)
    Transactions(client, transactional_id).init(60_000)
    assert client.fetch_committed(group) == offsets


def test_the_timeout_of_a_transaction_grows_with_its_bytes_and_partitions():
    def timeout_ms(size: int, most_ms: int) -> int:
        batches = [EncodedBatch(TopicPartition("t", 0), b"x" * size, 1)]
        settings = ProducerSettings(transaction_timeout_ms=most_ms)
        return Publication("T", batches, settings=settings).transaction_timeout_ms

    assert [timeout_ms(size, 60_000) for size in (0, 5_000_000, 90_000_000)] == [10_010, 15_010, 60_000]
    batches = [EncodedBatch(TopicPartition("t", number), b"", 1) for number in range(3_000)]
    assert Publication("T", batches).transaction_timeout_ms == 40_000
    assert timeout_ms(0, 3_000) == 3_000

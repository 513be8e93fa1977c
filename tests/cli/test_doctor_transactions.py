"""Lines of the doctor about a transactional id."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from click.testing import CliRunner
from support.clients import open_cluster
from support.topics import create_topic

from spark_groupsource.cli.doctor_transactions import TransactionFacts, evaluate_transaction
from spark_groupsource.cli.main import main
from spark_groupsource.client.records.transactions import Transactions
from spark_groupsource.client.transaction_states import OpenTransaction, TransactionState
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.source.positions.published_progress import WriterProgress, offset_of_progress, progress_group

P0 = TopicPartition("out", 0)
PRODUCER = ProducerIdAndEpoch(7, 2)
NOW_MS = 1_000_000


def lines(
    state: str | None, age_ms: int = 0, held=(P0,), open_transactions=(), progress=()
) -> list[tuple[str, str, str]]:
    found = None if state is None else TransactionState("T", state, PRODUCER, NOW_MS - age_ms, 60_000, held)
    facts = TransactionFacts("T", found, open_transactions, progress, NOW_MS)
    return [(status.value, text, fix) for status, text, fix in evaluate_transaction(facts)]


def test_an_unknown_id_says_who_creates_it():
    ((status, text, fix),) = lines(None)
    assert (status, text) == ("unknown", "Transactional id 'T' does not exist.")
    assert fix.startswith("The first batch of the query creates it")


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_an_id_without_an_open_transaction_is_good(state):
    found = lines(state, held=(), progress=[WriterProgress("q", 9)])
    assert found == [
        ("good", f"Transactional id 'T' has no open transaction (state {state}, producer id 7, epoch 2).", ""),
        ("good", "Batch 9 is the last one that query q has published.", ""),
    ]


def test_an_open_transaction_says_what_waits_for_it_and_how_long():
    ((status, text, fix),) = lines("Ongoing", 12_300)
    assert (status, fix[-13:]) == ("unknown", "or in 47.7 s.")
    assert "in state Ongoing for 12.3 s, of producer id 7, epoch 2, in out-0: read_committed consumers" in text


@pytest.mark.parametrize("state, age_ms", [("Ongoing", 70_000), ("PrepareCommit", 1_000), ("PrepareAbort", 1_000)])
def test_a_transaction_that_its_coordinator_does_not_end_is_bad(state, age_ms):
    ((status, _, fix),) = lines(state, age_ms)
    assert status == "bad" and "check that the brokers of these partitions run" in fix


def test_a_hanging_transaction_names_the_command_that_ends_it():
    hanging = OpenTransaction(P0, PRODUCER, 44, NOW_MS)
    found = lines("CompleteAbort", held=(), open_transactions=[hanging])
    assert found[1][0] == "bad" and "has a transaction of producer id 7 since offset 44" in found[1][1]
    assert found[1][2] == "Run: kafka-transactions.sh abort --topic out --partition 0 --start-offset 44."
    # the same one while its coordinator knows it
    assert len(lines("Ongoing", open_transactions=[hanging])) == 1


def test_a_transaction_of_another_producer_is_named():
    other = OpenTransaction(P0, ProducerIdAndEpoch(8, 0), 44, NOW_MS - 5_000)
    ((status, text, _),) = lines("Empty", held=(), open_transactions=[other])[1:]
    assert status == "unknown"
    assert text == "out-0 has a transaction of another producer (id 8) since offset 44, whose last record is 5.0 s old."


def test_the_command_shows_the_transaction_and_the_progress_of_a_query(cluster, topic):
    create_topic(cluster.bootstrap_servers, topic)
    name, output = f"T-{uuid4().hex[:8]}", TopicPartition(topic, 0)
    with open_cluster(cluster.bootstrap_servers) as client:
        transactions = Transactions(client, name)
        transactions.init(60_000)
        progress = offset_of_progress(WriterProgress("q", 4))
        transactions.commit_offsets(progress_group(name), {output: progress})
        transactions.end(is_committed=True)
        transactions.add_partitions([output])
        options = ["--bootstrap-server", cluster.bootstrap_servers, "--transactional-id", name, "--json"]
        result = CliRunner().invoke(main, ["doctor", *options])
        transactions.end(is_committed=False)
    found = [line for line in json.loads(result.stdout) if line["check"] == "transaction"]
    assert [line["status"] for line in found] == ["unknown", "good"], result.stdout
    assert "has a transaction in state Ongoing for" in found[0]["text"] and f"in {output}:" in found[0]["text"]
    assert found[1]["text"].startswith("Batch 4 is the last one that query q has published")

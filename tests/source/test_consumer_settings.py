"""Settings of Kafka's consumer in queries, tables, the notebook and commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.cli.common import client_settings, member_settings
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ACCEPTED_SETTINGS, ClientSettings, GroupSettings, without_prefix
from spark_groupsource.common.config_def import config_keys
from spark_groupsource.common.net import Address
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.notebook.cluster import parse_settings
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.table_options import parse_table_options
from spark_groupsource.source.process.embedded_address import create_subscribed

ADDRESS = "localhost:9092"
# of ConsumerConfig.configDef() of kafka-clients 4.4.0: the default of each setting, and other allowed values
VALUES = [
    tuple(line.split("\t")) for line in Path(__file__).with_name("consumer_config.tsv").read_text().splitlines()
]
BINARY = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
# what asks for something else than what is done; every other line is accepted
REJECTED = {
    ("allow.auto.create.topics", "true"),
    ("auto.commit.interval.ms", "5000"),
    ("auto.commit.interval.ms", "0"),
    ("auto.offset.reset", "latest"),
    ("auto.offset.reset", "earliest"),
    ("auto.offset.reset", "none"),
    ("check.crcs", "false"),
    ("client.dns.lookup", "resolve_canonical_bootstrap_servers_only"),
    ("enable.auto.commit", "true"),
    ("enable.metrics.push", "true"),
    ("group.protocol", "consumer"),
    ("group.remote.assignor", "uniform"),
    ("interceptor.classes", "x.Y"),
    ("internal.throw.on.fetch.stable.offset.unsupported", "true"),
    ("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer"),
    ("max.poll.records", "500"),
    ("max.poll.records", "1"),
    ("metadata.recovery.strategy", "none"),
    ("metric.reporters", "org.apache.kafka.common.metrics.JmxReporter"),
    ("metrics.num.samples", "3"),
    ("metrics.recording.level", "DEBUG"),
    ("metrics.sample.window.ms", "1000"),
    ("receive.buffer.bytes", "65536"),
    ("reconnect.backoff.max.ms", "2000"),
    ("reconnect.backoff.ms", "50"),
    ("security.providers", "x.Y"),
    ("send.buffer.bytes", "131072"),
    ("socket.connection.setup.timeout.max.ms", "10000"),
    ("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer"),
}


def stream(settings: dict[str, str]) -> ClientSettings:
    prefixed = {f"kafka.{name}": text for name, text in settings.items()}
    return parse_options({"kafka.group.id": "g", "subscribe": "t", **prefixed}, "stream").client


def batch(settings: dict[str, str]) -> ClientSettings:
    prefixed = {f"kafka.{name}": text for name, text in settings.items()}
    return parse_options({"subscribe": "t", **prefixed}, "batch").client


def table(settings: dict[str, str]) -> ClientSettings:
    return parse_table_options({"table": "lag", **{f"kafka.{name}": text for name, text in settings.items()}}).client


def notebook(settings: dict[str, str]) -> ClientSettings:
    kafka = {name: text for name, text in settings.items() if name != "bootstrap.servers"}
    return parse_settings(settings["bootstrap.servers"], kafka)


@pytest.fixture
def command(tmp_path: Path) -> Callable[[dict[str, str]], ClientSettings]:
    def parse(settings: dict[str, str]) -> ClientSettings:
        path = tmp_path / "client.properties"
        path.write_text("".join(f"{name}={text}\n" for name, text in settings.items() if name != "bootstrap.servers"))
        return client_settings(settings["bootstrap.servers"], path)

    return parse


def outcome(parse: Callable[[dict[str, str]], Any], settings: dict[str, str]) -> str:
    try:
        parse({"bootstrap.servers": ADDRESS, **settings})
    except ConfigurationError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize(("name", "value"), VALUES)
def test_a_setting_means_the_same_everywhere(
    name: str, value: str, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {outcome(parse, {name: value}) for parse in (stream, batch, table)}
    assert len(found) == 1, found
    (message,) = found
    assert outcome(notebook, {name: value}) == without_prefix(message)
    if (name, value) not in REJECTED:
        assert message == "accepted"
        assert outcome(command, {name: value}) == "accepted"
        return
    assert message.startswith((f"Option kafka.{name} is not supported: ", f"Option kafka.{name} must be true, got"))
    assert any(remedy in message for remedy in ("Remove", "Set ", "Decode"))
    # a properties file has the settings of other clients too
    if name != "check.crcs":
        assert outcome(command, {name: value}) == "accepted"
        assert name in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "is_accepted"),
    [
        ({"auto.commit.interval.ms": "5000", "enable.auto.commit": "FALSE "}, True),
        ({"auto.commit.interval.ms": "5000", "enable.auto.commit": "true"}, False),
        ({"reconnect.backoff.ms": "50", "retry.backoff.ms": "50"}, True),
        ({"reconnect.backoff.ms": "50", "retry.backoff.ms": "51"}, False),
        ({"socket.connection.setup.timeout.max.ms": "7", "request.timeout.ms": " 7"}, True),
        ({"sasl.mechanism": "GSSAPI", "security.protocol": "SSL"}, True),
        ({"sasl.mechanism": "GSSAPI", "security.protocol": "SASL_SSL"}, False),
        ({"ssl.provider": "BC", "security.protocol": "SSL"}, False),
        ({"ssl.trustmanager.algorithm": "PKIX", "security.protocol": "SSL"}, True),
        ({"key.deserializer": BINARY, "value.deserializer": BINARY}, True),
    ],
)
def test_other_settings_decide_whether_a_setting_has_an_effect(settings: dict[str, str], is_accepted: bool) -> None:
    found = {outcome(parse, settings) for parse in (stream, batch, table)}
    assert len(found) == 1 and (found == {"accepted"}) is is_accepted, found


# the member suffix is part of group.instance.id, so that it is checked where members exist
@pytest.mark.parametrize(
    "name", sorted({*ACCEPTED_SETTINGS, "metadata.broker.list", "fetch.wait.max.ms"} - {"group.instance.id"})
)
@pytest.mark.parametrize("value", ["", "x y", "-7", "1_0", "\u0663", "9" * 5000, "1.5"])
def test_a_bad_value_has_the_same_message_everywhere(name: str, value: str, command: Any) -> None:
    given = {name: value}
    messages = [outcome(parse, given) for parse in (stream, batch, table)]
    assert len(set(messages)) == 1, messages
    if "missing" in messages[0] or name in ("bootstrap.servers", "metadata.broker.list"):
        return
    assert messages[0] == "accepted" or f"kafka.{name} " in messages[0] and len(messages[0]) < 500
    assert outcome(notebook, given) == without_prefix(messages[0])
    assert without_prefix(outcome(command, given)) == without_prefix(messages[0])


def test_a_wrong_assignor_is_named_with_the_option() -> None:
    message = outcome(stream, {"partition.assignment.strategy": "range,fastest"})
    assert message == (
        "Option kafka.partition.assignment.strategy must list range, roundrobin, sticky, cooperative-sticky or "
        "module:Class of an assignor, got 'fastest'."
    )
    missing = outcome(stream, {"partition.assignment.strategy": "no_such_module:Mine"})
    assert missing.startswith("Option kafka.partition.assignment.strategy: creating assignor 'no_such_module:Mine' ")


@pytest.mark.parametrize("text", ["g ", " g", "\tg\n", "g"])
def test_a_group_has_one_name(text: str) -> None:
    for query in ("stream", "batch"):
        for name in ("kafka.group.id", "group.id", "KAFKA.GROUP.ID"):
            options = parse_options({"kafka.bootstrap.servers": ADDRESS, "subscribe": "t", name: text}, query)
            assert options.group_id == "g"
            assert options.group is None or options.group.group_id == "g"


@pytest.mark.parametrize("query", ["stream", "batch"])
@pytest.mark.parametrize("name", ["kafka.group.id", "group.id"])
@pytest.mark.parametrize("text", ["", " \t"])
def test_an_empty_group_is_rejected(query: Any, name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Option {name} is empty. Set it to the name of the consumer group."):
        parse_options({"kafka.bootstrap.servers": ADDRESS, "subscribe": "t", name: text}, query)


@pytest.mark.parametrize(
    "address", ["SASL_SSL://host:9092", " a:1 , b:2,", "[::1]:9092", "host", "a:1/", "a:70000", ","]
)
def test_addresses_are_decided_when_the_query_is_loaded(address: str, command: Any) -> None:
    parsed = []
    for parse in (stream, batch, table, notebook, command):
        try:
            parsed.append(str(parse({"bootstrap.servers": address}).bootstrap))
        except ConfigurationError as error:
            parsed.append(without_prefix(str(error)))
    assert len(set(parsed)) == 1, parsed
    if parsed[0].startswith("("):
        options = parse_options({"kafka.bootstrap.servers": address, "subscribe": "t"}, "batch")
        assert options.client_settings(options.bootstrap_servers).bootstrap == options.client.bootstrap


@pytest.mark.parametrize(("given", "created"), [({}, True), ({"kafka.allow.auto.create.topics": "False"}, False)])
def test_the_embedded_broker_gets_no_topics_that_the_query_refuses(given: dict[str, str], created: bool) -> None:
    options = parse_options({"kafka.bootstrap.servers": "embedded", "subscribe": "new", **given}, "batch")
    with EmbeddedBroker(config={"auto.create.topics.enable": "false"}) as broker:
        settings = options.client_settings(broker.bootstrap_servers)
        with ClusterClient(settings.bootstrap, settings) as cluster:
            create_subscribed(cluster, options)
            assert ("new" in cluster.metadata(None, refresh=True).topics) is created


# -- settings of members ---------------------------------------------------------------------------------------------

MEMBER_SETTINGS = sorted(key.name for key in config_keys(GroupSettings).values())


@pytest.mark.parametrize("name", [name for name in MEMBER_SETTINGS if name != "group.id"])
@pytest.mark.parametrize("value", ["", "7", "x y", "range", "true", "sticky, cooperative-sticky", "60000"])
def test_a_member_of_the_command_has_the_settings_of_a_stream(name: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(f"{name}={value}\n")

    def of_stream(settings: dict[str, str]) -> GroupSettings | None:
        prefixed = {f"kafka.{key}": text for key, text in settings.items()}
        return parse_options({"kafka.group.id": "g", "subscribe": "t", **prefixed}, "stream").group

    expected = found = None
    message = outcome(of_stream, {name: value})
    if message == "accepted":
        expected = of_stream({"bootstrap.servers": ADDRESS, name: value})
        found = member_settings(path, "g", "t")
    else:
        with pytest.raises(ConfigurationError) as raised:
            member_settings(path, "g", "t")
        assert str(raised.value) == message
    assert found == expected


@pytest.mark.parametrize("text", ["g ", " g", "\tg\n", "g"])
def test_a_group_of_the_command_has_the_name_of_that_of_a_stream(text: str) -> None:
    options = parse_options({"kafka.bootstrap.servers": ADDRESS, "subscribe": "t", "kafka.group.id": text}, "stream")
    assert options.group == member_settings(None, text, "t")


@pytest.mark.parametrize("separator", [",", ", ", " ,", ",,", ",\t"])
def test_a_list_has_the_same_entries_everywhere(separator: str) -> None:
    given = {"kafka.bootstrap.servers": ADDRESS, "kafka.group.id": "g"}
    topics = separator.join(["a", "b"])
    assert parse_options({**given, "subscribe": topics}, "stream").subscribe == ("a", "b")
    selected = parse_table_options({**given, "table": "lag", "topic": topics}).topic
    assert selected is not None and selected.names == ("a", "b")
    assert parse_table_options({**given, "table": "queries", "drain": topics}).drain == ("a", "b")
    servers = parse_table_options({"table": "lag", "kafka.bootstrap.servers": separator.join(["a:1", "b:2"])}).client
    assert servers.bootstrap == (Address("a", 1), Address("b", 2))
    assignors = separator.join(["range", "sticky"])
    strategy = {"kafka.partition.assignment.strategy": assignors}
    group = parse_options({**given, "subscribe": "t", **strategy}, "stream").group
    assert group is not None and group.assignors == ("range", "sticky")

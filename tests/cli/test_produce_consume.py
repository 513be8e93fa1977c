"""``groupsource produce`` and ``consume`` against both clusters and Kafka's own clients."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from schema_registry import SchemaRegistryServer
from support.clusters import Cluster
from support.fake_leader import FakeLeader
from support.topics import create_topic, produce

import spark_groupsource as gs
from spark_groupsource import EmbeddedBroker
from spark_groupsource.cli.console_serdes import serde
from spark_groupsource.cli.input_blocks import blocks_of, lines_of
from spark_groupsource.cli.main import main
from spark_groupsource.errors import BrokerError, ConfigurationError


def run(cluster: Cluster, verb: str, topic: str, *arguments: str, stdin: bytes = b"") -> Result:
    options = [verb, "--bootstrap-server", cluster.bootstrap_servers, "--topic", topic, *arguments]
    return CliRunner().invoke(main, options, input=stdin)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_consume_prints_the_produced_lines(cluster: Cluster, topic: str, compression: str) -> None:
    create_topic(cluster.bootstrap_servers, topic)
    lines = "".join(f"line {n} é\n" for n in range(12_000))
    written = run(cluster, "produce", topic, "--compression", compression, stdin=lines.encode())
    assert (written.exit_code, written.stderr) == (0, f"12000 records written to {topic}\n")
    assert run(cluster, "consume", topic).stdout == lines
    assert run(cluster, "consume", topic, "--from", "-2").stdout == "line 11998 é\nline 11999 é\n"
    assert run(cluster, "consume", topic, "--from", "7", "--max-messages", "1").stdout == "line 7 é\n"


def test_keys_map_to_the_partitions_of_the_java_producer(cluster: Cluster, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 6)
    keys = [b"UA", b"B6", b"EV", b"DL", b"", b"a longer key"]
    reference = Producer({"bootstrap.servers": cluster.bootstrap_servers, "partitioner": "murmur2"})
    for key in keys:
        reference.produce(topic, b"reference", key)
    assert reference.flush(30) == 0
    lines = b"=produced\n".join([*keys, b""])
    assert run(cluster, "produce", topic, "--key-separator", "=", stdin=lines).exit_code == 0
    shown = run(cluster, "consume", topic, "--show").stdout.splitlines()
    partitions: dict[str, list[str]] = {"reference": [], "produced": []}
    for line in shown:
        _, _, position, rest = line.split(" ", 3)
        key, _, value = rest.rpartition(" ")
        partitions[value].append(f"{position.partition(':')[0]} {key}")
    assert sorted(partitions["produced"]) == sorted(partitions["reference"])
    assert len(partitions["produced"]) == len(keys)


def test_show_prints_keys_and_positions_of_other_clients(cluster: Cluster, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic)
    produce(cluster.bootstrap_servers, topic, [(0, None, b"v"), (0, b"k", None)], compression_codec="zstd")
    shown = run(cluster, "consume", topic, "--show").stdout.splitlines()
    assert [line.split()[2:] for line in shown] == [["0:0", "-", "v"], ["0:1", "k"]]


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("produce", ["--partition", "5"], "Option --partition must be between 0 and 0"),
        ("produce", ["--key-separator", "="], "must occur in each line, got 'x'"),
        ("consume", ["--partition", "5"], "must be a partition of topic"),
        ("consume", ["--from", "noon"], "must be earliest, an offset or -N, got 'noon'"),
    ],
)
def test_invalid_option_is_reported(
    cluster: Cluster, topic: str, verb: str, arguments: list[str], message: str
) -> None:
    create_topic(cluster.bootstrap_servers, topic)
    result = run(cluster, verb, topic, *arguments, stdin=b"x\n")
    assert result.exit_code == (2 if "noon" in arguments else 1)
    assert message in result.stderr


@pytest.mark.parametrize("verb", ["produce", "consume"])
def test_unknown_topic_is_reported(cluster: Cluster, topic: str, verb: str) -> None:
    result = run(cluster, verb, topic, stdin=b"x\n")
    assert result.exit_code == 1
    assert topic in result.stderr and len(result.stderr.splitlines()) == 1


def consumed(cluster: Cluster, topic: str, *arguments: str) -> list[dict[str, Any]]:
    result = run(cluster, "consume", topic, "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_json_lines_have_keys_headers_tombstones_and_times(cluster: Cluster, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2, {"retention.ms": "-1"})
    lines = [
        {"key": "a", "value": "text é", "headers": [["h", "1"], ["h", None]], "partition": 1, "timestamp": 1_000},
        {"key": "a", "value": None, "partition": 1, "timestamp": 3_600_000},
        {"value": {"base64": "//8="}, "partition": 0, "timestamp": 7_200_000},
    ]
    stdin = "".join(json.dumps(line) + "\n" for line in lines).encode()
    assert run(cluster, "produce", topic, "--json", "--header", "all=x", stdin=stdin).exit_code == 0
    found = consumed(cluster, topic)
    assert [(r["partition"], r["offset"], r["key"], r["value"], r["timestamp"]) for r in found] == [
        (0, 0, None, {"base64": "//8="}, 7_200_000),
        (1, 0, "a", "text é", 1_000),
        (1, 1, "a", None, 3_600_000),
    ]
    assert found[1]["headers"] == [["all", "x"], ["h", "1"], ["h", None]]
    # the output is an input
    again = run(cluster, "consume", topic, "--json", "--partition", "1").stdout
    assert run(cluster, "produce", topic, "--json", stdin=again.encode()).exit_code == 0
    assert [r["value"] for r in consumed(cluster, topic, "--partition", "1")] == ["text é", None] * 2

    template = r"%t/%p/%o %T %k=%s %S\n"
    shown = run(cluster, "consume", topic, "--from", "1970-01-01T01:00:00", "--format", template).stdout
    assert f"{topic}/1/1 3600000 a= -1\n" in shown and f"{topic}/1/0 " not in shown
    assert [r["timestamp"] for r in consumed(cluster, topic, "--last", "2")] == [3_600_000, 7_200_000]
    nothing = run(cluster, "consume", topic, "--from", "-1h")
    assert (nothing.exit_code, nothing.stdout) == (0, "")


def test_json_may_have_the_header_of_a_schema_registry() -> None:
    decode = serde("--value-format", "json", None).decode
    assert decode(b'\0\0\0\0\7{"n": 1}') == decode(b'{"n": 1}') == {"n": 1}
    with pytest.raises(ConfigurationError, match="--value-format is json, but a record is not"):
        decode(b"\0\0\0\0\7")


def test_times_of_producers_that_write_microseconds(cluster: Cluster, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    times = [1_700_000_000_000_000, 1_700_000_000_000]
    stdin = "".join(json.dumps({"value": str(time), "timestamp": time}) + "\n" for time in times).encode()
    assert run(cluster, "produce", topic, "--json", stdin=stdin).exit_code == 0
    assert [row["timestamp"] for row in consumed(cluster, topic, "--last", "2")] == sorted(times)
    shown = run(cluster, "consume", topic, "--show").stdout
    assert shown.splitlines()[0] == f"55840-11-08 22:13:20.000000+00:00 0:0 - {times[0]}"
    with gs.connect(cluster.bootstrap_servers) as opened:
        found = opened.peek(topic)
    assert [row["value"] for row in found] == [str(time) for time in sorted(times)]
    assert "55840-11-08" in repr(found) and "55840-11-08" in found._repr_html_()


@pytest.mark.parametrize(
    ("name", "lines"),
    [("int", "1\n-5\n"), ("double", "1.5\n"), ("hex", "00ff\n"), ("base64", "//8=\n"), ("json", '{"a": 1}\n')],
)
def test_formats_of_values(embedded: EmbeddedBroker, topic: str, name: str, lines: str) -> None:
    cluster = Cluster("embedded", embedded.bootstrap_servers)
    create_topic(cluster.bootstrap_servers, topic)
    assert run(cluster, "produce", topic, "--value-format", name, stdin=lines.encode()).exit_code == 0
    assert run(cluster, "consume", topic, "--value-format", name).stdout == lines
    result = run(cluster, "produce", topic, "--value-format", name, stdin=b"\xff\n")
    assert (result.exit_code, f"Option --value-format is {name}, but a record is not" in result.stderr) == (1, True)


def test_bytes_as_they_are(embedded: EmbeddedBroker, topic: str) -> None:
    """As kcat prints them; %R precedes each value with its length."""
    cluster = Cluster("embedded", embedded.bootstrap_servers)
    create_topic(cluster.bootstrap_servers, topic)
    assert run(cluster, "produce", topic, stdin=b"\xff\xfe\nplain\n").exit_code == 0
    assert run(cluster, "consume", topic).stdout_bytes == b"\\xff\\xfe\nplain\n"
    assert run(cluster, "consume", topic, "--value-format", "raw").stdout_bytes == b"\xff\xfe\nplain\n"
    shown = run(cluster, "consume", topic, "--value-format", "raw", "--format", "%R%s").stdout_bytes
    assert shown == b"\0\0\0\2\xff\xfe\0\0\0\5plain"
    assert run(cluster, "consume", topic, "--value-format", "raw", "--json").exit_code == 2


def test_avro_with_a_schema(embedded: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    cluster = Cluster("embedded", embedded.bootstrap_servers)
    create_topic(cluster.bootstrap_servers, topic)
    schema = tmp_path / "flight.avsc"
    fields = [{"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"]}]
    schema.write_text(json.dumps({"type": "record", "name": "Flight", "fields": fields}))
    lines = '{"carrier": "UA", "delay": 12}\n{"carrier": "DL", "delay": null}\n'
    for more, read in (((), ()), (("--schema-id", "7"), ("--schema-header",))):
        assert run(cluster, "produce", topic, "--schema", str(schema), *more, stdin=lines.encode()).exit_code == 0
        assert run(cluster, "consume", topic, "--schema", str(schema), "--from", "-2", *read).stdout == lines
    result = run(cluster, "produce", topic, "--schema", str(schema), stdin=b'{"carrier": 1}\n')
    assert (result.exit_code, "--value-format is avro" in result.stderr) == (1, True)


def test_avro_of_a_registry(embedded: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    cluster = Cluster("embedded", embedded.bootstrap_servers)
    create_topic(cluster.bootstrap_servers, topic)
    with SchemaRegistryServer() as registry:
        for fields in (["carrier"], ["carrier", "gate"]):
            schema = {"type": "record", "name": "Flight", "fields": [{"name": f, "type": "string"} for f in fields]}
            path = tmp_path / f"{len(fields)}.avsc"
            path.write_text(json.dumps(schema))
            schema_id = str(registry.register(f"{topic}-value", schema))
            line = json.dumps({field: field.upper() for field in fields}).encode()
            run(cluster, "produce", topic, "--schema", str(path), "--schema-id", schema_id, stdin=line)
        config = tmp_path / "formatter.properties"
        config.write_text(f"schema.registry.url={registry.url}\n")
        url = ("--property", f"schema.registry.url={registry.url}")
        expected = '{"carrier": "CARRIER"}\n{"carrier": "CARRIER", "gate": "GATE"}\n'
        for given in (url, ("--formatter-config", str(config))):
            assert run(cluster, "consume", topic, "--value-format", "avro", *given).stdout == expected
        # read as one schema
        options = ("--value-format", "avro", "--schema", str(tmp_path / "1.avsc"), "--json")
        found = run(cluster, "consume", topic, *options, *url).stdout.splitlines()
        assert [json.loads(each)["value"] for each in found] == [{"carrier": "CARRIER"}] * 2
        run(cluster, "produce", topic, stdin=b"text\n")
        failed = run(cluster, "consume", topic, "--value-format", "avro", *url)
        assert failed.exit_code == 1 and "a record is not: b'text' (it does not begin with a zero" in failed.stderr
        failed = run(cluster, "consume", topic, "--value-format", "avro", "--property", "schema.registry.ulr=x", *url)
        assert "Property schema.registry.ulr is unknown. Did you mean schema.registry.url?" in failed.stderr
        assert "Format avro needs a schema" in run(cluster, "consume", topic, "--value-format", "avro").stderr


def test_protobuf(embedded: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    """With a schema, and as it was written."""
    cluster = Cluster("embedded", embedded.bootstrap_servers)
    create_topic(cluster.bootstrap_servers, topic)
    schema = tmp_path / "flight.proto"
    schema.write_text('syntax = "proto3"; message Flight { string carrier = 1; map<string, int32> delays = 2; }')
    bare = b"\x0a\2UA\x12\5\x0a\1a\x10\7"
    expected = '{"carrier": "UA", "delays": {"a": 7}}\n'
    embedded.produce(topic, [bare])
    assert run(cluster, "consume", topic, "--value-format", "protobuf", "--schema", str(schema)).stdout == expected
    with SchemaRegistryServer() as registry:
        url = ("--value-format", "protobuf", "--property", f"schema.registry.url={registry.url}")
        schema_id = registry.register("s", schema.read_text() + "message Gate { bytes name = 1; }", "PROTOBUF")
        header = b"\0" + schema_id.to_bytes(4, "big")
        embedded.produce(topic, [header + b"\0" + bare, header + b"\2\2\x0a\2A1"])
        found = run(cluster, "consume", topic, *url, "--from", "-2")
        assert found.stdout == expected + '{"name": "A1"}\n', found.stderr
        failed = run(cluster, "consume", topic, *url)
        assert "Option --value-format is protobuf, but a record is not" in failed.stderr
        embedded.produce(topic, [header + b"\2\4"])
        failed = run(cluster, "consume", topic, *url, "--from", "-1")
        assert "its schema has no message with indexes [2]" in failed.stderr
    failed = run(cluster, "consume", topic, "--value-format", "protobuf")
    assert "Format protobuf needs a schema. Set --schema" in failed.stderr
    failed = run(cluster, "consume", topic, "--value-format", "protobuf", "--schema", str(schema), "--message", "X")
    assert "names 'X', which no message has" in failed.stderr


def test_null_marker_and_fixed_key(embedded: EmbeddedBroker, topic: str) -> None:
    cluster = Cluster("embedded", embedded.bootstrap_servers)
    create_topic(cluster.bootstrap_servers, topic)
    options = ("--key", "k", "--null-marker", "NULL")
    assert run(cluster, "produce", topic, *options, stdin=b"v\nNULL\n").exit_code == 0
    assert [(r["key"], r["value"]) for r in consumed(cluster, topic)] == [("k", "v"), ("k", None)]
    shown = run(cluster, "consume", topic, "--key-separator", ":", "--null-marker", "~").stdout
    assert shown == "k:v\nk:~\n"


def test_a_member_continues_at_its_commits(cluster: Cluster, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    run(cluster, "produce", topic, stdin=b"".join(b"%d\n" % n for n in range(10)))
    first = run(cluster, "consume", topic, "--group", group, "--max-messages", "3")
    assert first.exit_code == 0, first.output
    rest = run(cluster, "consume", topic, "--group", group)
    assert sorted(map(int, (first.stdout + rest.stdout).split())) == list(range(10))
    assert run(cluster, "consume", topic, "--group", group).stdout == ""
    described = CliRunner().invoke(
        main, ["groups", "describe", "--bootstrap-server", cluster.bootstrap_servers, "--group", group]
    )
    assert [line.split()[5] for line in described.stdout.splitlines()[2:]] == ["0", "0"]
    assert "has no active members" in described.stderr


def test_an_invalid_line_is_named_and_the_lines_before_it_are_written(embedded: EmbeddedBroker, topic: str) -> None:
    cluster = Cluster("embedded", embedded.bootstrap_servers)
    create_topic(cluster.bootstrap_servers, topic)
    lines = b'{"value": "a"}\r\n{"value": "b"}\nno JSON\n{"value": "c"}\n'
    result = run(cluster, "produce", topic, "--json", stdin=lines)
    assert result.exit_code == 1 and result.stderr.startswith("Error: Line 3 of the input is invalid: Each line must")
    assert result.stderr.endswith("The 2 lines before it are written.\n")
    assert [r["value"] for r in consumed(cluster, topic)] == ["a", "b"]


def test_delimiter_of_records(embedded: EmbeddedBroker, topic: str) -> None:
    cluster = Cluster("embedded", embedded.bootstrap_servers)
    create_topic(cluster.bootstrap_servers, topic)
    assert run(cluster, "produce", topic, "--delimiter", r"\0", stdin=b"two\nlines\0second\0last").exit_code == 0
    assert [r["value"] for r in consumed(cluster, topic)] == ["two\nlines", "second", "last"]
    assert "must not be empty" in run(cluster, "produce", topic, "--delimiter", "", stdin=b"x").stderr


def test_lines_are_written_as_they_arrive() -> None:
    class Slow(io.RawIOBase):
        """Returns a part of a line at each read, as a pipe."""

        parts = [b"a\nb", b"c\n", b"d"]

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            part = self.parts.pop(0) if self.parts else b""
            buffer[: len(part)] = part
            return len(part)

    chunks = (lines_of(block, b"\n") for block in blocks_of(io.BufferedReader(Slow()), b"\n"))
    assert next(chunks) == [b"a"] and Slow.parts, "without waiting for more"
    assert list(chunks) == [[b"bc"], [b"d"]]


def test_positions_of_kcat(embedded: EmbeddedBroker, topic: str) -> None:
    cluster = Cluster("embedded", embedded.bootstrap_servers)
    create_topic(cluster.bootstrap_servers, topic, config={"retention.ms": "-1"})
    lines = "".join(json.dumps({"value": str(n), "timestamp": 1_000 * n}) + "\n" for n in range(6))
    assert run(cluster, "produce", topic, "--json", stdin=lines.encode()).exit_code == 0
    for arguments, values in {
        ("--from", "beginning", "--until", "2"): "01",
        ("--from", "s@2000", "--until", "s@4000"): "23",
        ("--from", "-2", "--until", "end"): "45",
        ("--from", "end"): "",
        ("--until", "1970-01-01T00:00:01"): "0",
    }.items():
        assert run(cluster, "consume", topic, *arguments).stdout.split() == list(values), arguments
    assert run(cluster, "consume", topic, "--until", "2", "--follow").exit_code == 2


@pytest.mark.parametrize("separator", ["", ":"])
@pytest.mark.slow
def test_many_lines_are_written_by_block(cluster: Cluster, topic: str, separator: str) -> None:
    """The records and partitions are those of the lines one by one, which a null marker requires."""
    create_topic(cluster.bootstrap_servers, topic, 3)
    create_topic(cluster.bootstrap_servers, f"{topic}-lines", 3)
    lines = b"".join(b"k%d:v:%d%s\n" % (n % 97, n, b"\r" * (n % 3)) for n in range(9_000)) + b"\xff:\n:last"
    options = ["--key-separator", separator] if separator else []
    assert run(cluster, "produce", topic, *options, "--compression", "lz4", stdin=lines).exit_code == 0
    assert run(cluster, "produce", f"{topic}-lines", *options, "--null-marker", "NULL", stdin=lines).exit_code == 0
    fields = ("partition", "offset", "key", "value")
    found, expected = ([[r[n] for n in fields] for r in consumed(cluster, name)] for name in (topic, f"{topic}-lines"))
    assert found == expected and len(found) == 9_002
    assert all(record[2] is None for record in found) == (not separator)


def test_a_block_with_an_invalid_line_is_written_up_to_it(embedded: EmbeddedBroker, topic: str) -> None:
    cluster = Cluster("embedded", embedded.bootstrap_servers)
    create_topic(cluster.bootstrap_servers, topic)
    lines = b"k:v\n" * 500 + b"no separator\n" + b"k:v\n" * 500
    result = run(cluster, "produce", topic, "--key-separator", ":", stdin=lines)
    assert (result.exit_code, "Line 501 of the input is invalid" in result.stderr) == (1, True)
    assert len(consumed(cluster, topic)) == 500


@pytest.mark.parametrize(
    "error",
    [
        BrokerError(29, "Describing topic t", "Grant the user DESCRIBE and READ on the topic."),
        BrokerError(29, "Produce to t-0"),
        BrokerError(31, "InitProducerId"),
    ],
)
def test_the_missing_permission_to_write_is_named(
    error: BrokerError, monkeypatch: pytest.MonkeyPatch, embedded: EmbeddedBroker
) -> None:
    def fail(*_: object) -> None:
        raise error

    # private: the embedded broker rejects no write without a login
    monkeypatch.setattr("spark_groupsource.cli.produce_command._write", fail)
    result = run(Cluster("embedded", embedded.bootstrap_servers), "produce", "t")
    assert result.exit_code == 1 and "--operation WRITE --topic t)" in result.stderr and "READ" not in result.stderr


@pytest.mark.slow
def test_follow_ends_with_the_pipe(embedded: EmbeddedBroker, topic: str) -> None:
    """The reader of the pipe stops after one line; the command ends without a message."""
    cluster = Cluster("embedded", embedded.bootstrap_servers)
    create_topic(cluster.bootstrap_servers, topic)
    run(cluster, "produce", topic, stdin=(b"x" * 60_000 + b"\n") * 4)
    command = [sys.executable, "-m", "spark_groupsource.cli", "consume", "--topic", topic, "--follow"]
    with subprocess.Popen(
        [*command, "--bootstrap-server", cluster.bootstrap_servers], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(1) == b"x"
        process.stdout.close()
        assert process.wait(20) == 1
        assert process.stderr.read() == b""


def test_unknown_token_of_a_format_is_reported() -> None:
    result = CliRunner().invoke(main, ["consume", "--topic", "t", "--format", "%q"])
    assert (result.exit_code, "Option --format has the unknown token %q." in result.stderr) == (2, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0 and "_GROUPSOURCE_COMPLETE" in result.stdout


def test_the_last_records_of_equal_timestamp_are_those_sent_last(cluster: Cluster, topic: str) -> None:
    """One block of lines has one timestamp, and is distributed over the partitions."""
    create_topic(cluster.bootstrap_servers, topic, 3)
    numbers = iter(range(1_000))
    for count in (10, 10, 7):
        values = [str(next(numbers)) for _ in range(count)]
        run(cluster, "produce", topic, stdin="".join(f"{value}\n" for value in values).encode())
    expected = [str(number) for number in range(27)]
    for count in (1, 3, 7, 9, 18, 27, 50):
        assert run(cluster, "consume", topic, "--last", str(count)).stdout.split() == expected[-count:], count
    with gs.connect(cluster.bootstrap_servers) as opened:
        assert [row["value"] for row in opened.peek(topic, 7)] == expected[-7:]


def test_offsets_without_records_do_not_count_as_last(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Transaction markers and records of aborted transactions, at the end and between the records."""
    create_topic(cluster.bootstrap_servers, topic)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions()
    for value, end in ((b"a", "commit"), (b"b", "commit"), (b"x", "abort"), (b"c", "commit"), (b"y", "abort")):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush()
        producer.commit_transaction() if end == "commit" else producer.abort_transaction()
    config = tmp_path / "client.properties"
    for level, values in {"read_committed": "abc", "read_uncommitted": "abxcy"}.items():
        config.write_text(f"isolation.level={level}\n")
        for count in (1, 2, 3, 9):
            shown = run(cluster, "consume", topic, "--last", str(count), "--command-config", str(config))
            assert shown.stdout.split() == list(values[-count:]), (level, count)


def test_fields_of_another_name_are_reported_with_the_line(embedded: EmbeddedBroker, topic: str) -> None:
    cluster = Cluster("embedded", embedded.bootstrap_servers)
    create_topic(cluster.bootstrap_servers, topic)
    lines = b'{"value": "a", "topic": "another", "offset": 7}\n{"vaule": "b"}\n'
    result = run(cluster, "produce", topic, "--json", stdin=lines)
    assert result.exit_code == 1 and result.stderr.startswith("Error: Line 2 of the input is invalid: ")
    assert "field 'vaule' is unknown, did you mean 'value'" in result.stderr
    assert [r["value"] for r in consumed(cluster, topic)] == ["a"]
    for line in (b"[1]", b"7", b"null", b'"text"', b'{"key": 1, "tombstone": true}'):
        result = run(cluster, "produce", topic, "--json", stdin=line + b"\n")
        assert result.exit_code == 1 and "Line 1 of the input is invalid: Each line must be" in result.stderr, line


@pytest.mark.parametrize("verb", ["produce", "consume"])
def test_a_misspelled_topic_is_reported_with_near_ones(embedded: EmbeddedBroker, topic: str, verb: str) -> None:
    cluster = Cluster("embedded", embedded.bootstrap_servers)
    create_topic(cluster.bootstrap_servers, topic)
    result = run(cluster, verb, topic.replace("t-", "T-"), stdin=b"x\n")
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert f"The topic does not exist. Did you mean '{topic}'" in result.stderr


def test_offsets_that_compaction_has_removed_do_not_count_as_last() -> None:
    leader = FakeLeader(log_end=1_000)
    leader.gap = frozenset(range(5, 998))
    try:
        cluster = Cluster("fake", f"127.0.0.1:{leader.address.port}")
        for count in (1, 2, 3, 6):
            found = [record["offset"] for record in consumed(cluster, "t", "--last", str(count))]
            assert found == [0, 1, 2, 3, 4, 998, 999][-count:]
    finally:
        leader.close()


def test_a_member_has_the_settings_of_the_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("session.timeout.ms=2000\nheartbeat.interval.ms=2000\n")
    given = ["--bootstrap-server", "localhost:1", "--command-config", str(path), "--group", "g"]
    rejected = CliRunner().invoke(main, ["consume", "--topic", "t", *given])
    assert rejected.exit_code == 1
    assert "Option heartbeat.interval.ms must be below session.timeout.ms (2000 ms)" in rejected.stderr

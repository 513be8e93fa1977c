"""``groupsource offsets-log`` prints the output of Kafka's dump tool and reports corruption."""

from __future__ import annotations

import json
import os
import shutil
import struct
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from support.clusters import Cluster
from support.commits import commit_as
from support.dumped import dump_tool, parsed, segments
from support.java_tools import JavaTools
from support.members import LibrdkafkaMember
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.cli.main import main
from spark_groupsource.records.decode import CONTROL_ABORT
from spark_groupsource.records.encode import Record, control_key, encode_batch
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.encoder import encode_data
from spark_groupsource.wire.group_records import GroupKey, OffsetKey, OffsetValue, encode_key, encode_offset_value
from spark_groupsource.wire.messages import GroupMetadataValue, OffsetCommitValue
from spark_groupsource.wire.record_json import UNKNOWN_TAGS, modern_record_classes

CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.segment.bytes": "1500",
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.01",
}


def offsets_log(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["offsets-log", *map(str, arguments)])


@pytest.fixture(scope="module")
def data_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Data of a stopped embedded broker: a group with members, repeated commits, tombstones, compacted segments."""
    path = tmp_path_factory.mktemp("offsets-log") / "data"
    with EmbeddedBroker(path, config=CONFIG) as broker:
        bootstrap = broker.bootstrap_servers
        create_topic(bootstrap, "t", 2)
        produce(bootstrap, "t", ((n % 2, None, b"v") for n in range(20)))
        static = LibrdkafkaMember(bootstrap, "g", "t", group_instance_id="one")
        with static as one, LibrdkafkaMember(bootstrap, "g", "t") as two:
            wait_until(lambda: sum(one.seen.values()) + sum(two.seen.values()) >= 20, "all records are read")
            for number in range(40):
                text = "é" * (number % 3)
                commit_as(bootstrap, "simple", [TopicPartition("t", p, number, metadata=text) for p in (0, 1)])
            admin = AdminClient({"bootstrap.servers": bootstrap})
            admin.delete_consumer_groups(["simple"])["simple"].result(30)
            commit_as(bootstrap, "simple", [TopicPartition("t", 1, 7)])
            wait_until(lambda: (path / "cleaner-offset-checkpoint").exists(), "__consumer_offsets is compacted")
    yield path


@pytest.mark.kafka
def test_data_directory_equals_the_output_of_kafkas_tool(
    data_directory: Path, java: JavaTools
) -> None:
    ours = offsets_log(data_directory)
    assert (ours.exit_code, ours.stderr) == (0, "")
    lines = parsed(ours.stdout)
    assert lines == dump_tool(java, segments(data_directory))
    records = [line for line in lines if isinstance(line, tuple)]
    assert any(payload == "<DELETE>" for _, _, payload in records)
    values = [payload["data"] for _, _, payload in records if payload != "<DELETE>"]
    members = [member for value in values for member in value.get("members", ())]
    assert [member["subscription"]["topics"] for member in members][-1] == ["t"]


@pytest.mark.slow
def test_paths_can_be_files_and_partition_directories(data_directory: Path) -> None:
    files = segments(data_directory)
    assert len(files) > 3
    expected = offsets_log(data_directory).stdout
    assert offsets_log(*files).stdout == expected
    directories = dict.fromkeys(path.parent for path in files)
    assert offsets_log(*directories).stdout == expected


def test_json_and_table_show_the_same_records(data_directory: Path) -> None:
    lines = [json.loads(line) for line in offsets_log("--format", "json", data_directory).stdout.splitlines()]
    dumped = [line for line in parsed(offsets_log(data_directory).stdout) if isinstance(line, tuple)]
    assert [(line["key"], line["payload"] or "<DELETE>") for line in lines] == [each[1:] for each in dumped]
    header, *rows = offsets_log("--format", "table", data_directory).stdout.splitlines()
    assert header.split() == ["PARTITION", "OFFSET", "TIME", "TRANSACTION", "TYPE", "GROUP", "CONTENT"]
    shown = [row.split()[:2] + row.split()[4:6] for row in rows]
    kinds = {"1": "offset", "2": "group"}
    assert shown == [
        [str(line["partition"]), str(line["offset"]), kinds[line["key"]["type"]], line["key"]["data"]["group"]]
        for line in lines
    ]
    assert any(row.endswith("t-1 7") for row in rows) and any("consumer/range, 2 members" in row for row in rows)


def test_group_filter(data_directory: Path) -> None:
    lines = offsets_log("--format", "json", "--group", "simple", data_directory).stdout.splitlines()
    assert lines and {json.loads(line)["key"]["data"]["group"] for line in lines} == {"simple"}
    assert "generation" not in offsets_log("--group", "simple", data_directory).stdout
    assert offsets_log("--json", "--group", "simple", data_directory).stdout.splitlines() == lines
    missing = offsets_log("--group", "simples", data_directory)
    assert missing.exit_code == 1 and missing.stderr == (
        "Error: Consumer group 'simples' has no record in __consumer_offsets. Did you mean 'simple'?\n"
    )


def test_options_without_effect_are_rejected(data_directory: Path) -> None:
    wrong = offsets_log("--json", "--format", "table", data_directory)
    assert (wrong.exit_code, "Options --json and --format table cannot be" in wrong.stderr) == (2, True)
    wrong = offsets_log("--command-config", "c", data_directory)
    assert (wrong.exit_code, "--command-config has no effect without --bootstrap-server" in wrong.stderr) == (2, True)


def test_reading_from_a_running_broker(cluster: Cluster, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap_servers, topic)
    commit_as(cluster.bootstrap_servers, group, [TopicPartition(topic, 0, 3)])
    commit_as(cluster.bootstrap_servers, group, [TopicPartition(topic, 0, 4)])
    result = offsets_log("--bootstrap-server", cluster.bootstrap_servers, "--group", group, "--format", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    offsets = [json.loads(line)["payload"]["data"]["offset"] for line in result.stdout.splitlines()]
    assert offsets == [3, 4]


def test_broker_without_groups() -> None:
    with EmbeddedBroker() as broker:
        result = offsets_log("--bootstrap-server", broker.bootstrap_servers)
    assert (result.exit_code, result.stdout) == (0, "") and "no group has used this cluster" in result.stderr


# --- corrupt and unusual records ---


def segment(directory: Path, *batches: bytes) -> Path:
    """A segment of consecutive batches."""
    path = directory / "__consumer_offsets-7" / f"{0:020d}.log"
    path.parent.mkdir()
    base_offset = 0
    with path.open("wb") as file:
        for batch in batches:
            file.write(struct.pack(">q", base_offset) + batch[8:])
            (header,) = iter_batches(batch)
            base_offset += header.last_offset_delta + 1
    return path


def offset(value: int, **options: object) -> bytes:
    key, data = encode_key(OffsetKey("g", "t", 0)), encode_offset_value(OffsetValue(value, metadata="m"))
    return encode_batch([Record(key, data, 1_000)], **options)  # type: ignore[arg-type]


def test_transactional_and_unknown_records(tmp_path: Path) -> None:
    marker = Record(control_key(CONTROL_ABORT), struct.pack(">hi", 0, 4), 1_000)
    kip_848 = Record(struct.pack(">hh", 3, 1) + b"g", b"\0\0\0\0\0\1\0", 1_000)
    newer = Record(struct.pack(">h", 99) + b"?", b"?", 1_000)
    path = segment(
        tmp_path,
        offset(5, transactional=True, producer_id=8, producer_epoch=1, base_sequence=0),
        encode_batch([marker], transactional=True, control=True, producer_id=8, producer_epoch=1),
        encode_batch([kip_848, newer, Record(encode_key(GroupKey("g")), None, 1_000)], codec=1),
    )
    result = offsets_log(path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "isTransactional: true" in result.stdout and "compresscodec: gzip" in result.stdout
    assert "offset: 1 CreateTime: 1000 keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] endTxnMarker: ABORT " in (
        result.stdout
    )
    assert "key: Unknown record type 99 at offset 3, skipping." in result.stdout
    rows = offsets_log("--format", "table", path).stdout.splitlines()[1:]
    assert [row.split()[3:] for row in rows] == [
        ["8/1", "offset", "g", "t-0", "5", "metadata", "'m'"],
        ["8/1", "marker", "-", "ABORT"],
        ["-", "newer", "g", "ConsumerGroupMetadata", '{"epoch":1}'],
        ["-", "unknown", "-", "record", "type", "99"],
        ["-", "group", "g", "<DELETE>"],
    ]
    forms = [json.loads(line) for line in offsets_log("--format", "json", path).stdout.splitlines()]
    assert forms[0]["transaction"] == {"producerId": 8, "producerEpoch": 1}
    assert forms[1]["marker"] == {"type": "ABORT", "coordinatorEpoch": 4}
    assert forms[2]["key"] == {"type": "3", "data": {"groupId": "g"}} and forms[3]["key"] == {"type": "99"}
    assert forms[2]["payload"] == {"version": "0", "data": {"epoch": 1}}


@pytest.mark.parametrize("form", ["dump", "table", "json"])
def test_tagged_fields_of_newer_brokers_are_shown(tmp_path: Path, form: str) -> None:
    _, streams_value = modern_record_classes()[17]
    group = struct.pack(">hh", 17, 1) + b"g"
    values = {
        encode_key(OffsetKey("g", "t", 0)): encode_data(OffsetCommitValue(offset=5, unknown_tags={9: b"offset"}), 4),
        encode_key(GroupKey("g")): encode_data(
            GroupMetadataValue(
                protocol_type="consumer",
                members=[GroupMetadataValue.MemberMetadata(member_id="m", unknown_tags={9: b"member"})],
                unknown_tags={8: b"group"},
            ),
            4,
        ),
        group: encode_data(
            streams_value(epoch=1, stored_description_topology_epoch=6, unknown_tags={7: b"streams"}), 0
        ),
    }
    path = segment(tmp_path, encode_batch([Record(key, value, 1_000) for key, value in values.items()]))
    result = offsets_log("--format", form, path)
    assert (result.exit_code, result.stderr) == (0, "")
    for tag, text in ((9, b"offset"), (9, b"member"), (8, b"group"), (7, b"streams")):
        assert f'"{UNKNOWN_TAGS}":{{"{tag}":"{b64encode(text).decode()}"}}' in result.stdout.replace(
            f"{UNKNOWN_TAGS} ", f'"{UNKNOWN_TAGS}":'
        )
    assert '"storedDescriptionTopologyEpoch":6' in result.stdout


@pytest.mark.parametrize("form", ["dump", "table", "json"])
def test_corruption_is_reported_after_the_valid_records(tmp_path: Path, form: str) -> None:
    path = segment(tmp_path, offset(1), offset(2), offset(3), offset(4))
    data = bytearray(path.read_bytes())
    size = len(offset(1))
    data[size + 70] ^= 1  # the second batch fails its checksum
    data[-5:] = b""  # the last batch is truncated
    path.write_bytes(data)
    before = path.stat().st_mtime_ns, path.read_bytes()
    result = offsets_log("--format", form, path)
    assert result.exit_code == 1
    first, second = result.stderr.splitlines()
    assert f"Error: {path} is corrupt at byte {size} (" in first and f"): {size} bytes are skipped." in first
    assert f"Error: {path} is corrupt at byte {3 * size} (" in second and f"): {size - 5} bytes are skipped." in second
    valid = [line for line in result.stdout.splitlines() if '"t"' in line or " t-0 " in line]
    assert len(valid) == 2
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before and sorted(os.listdir(path.parent)) == [path.name]


def test_record_that_cannot_be_decoded_is_reported(tmp_path: Path) -> None:
    broken = encode_batch([Record(encode_key(OffsetKey("g", "t", 0)), b"\0\3short", 1_000)])
    path = segment(tmp_path, offset(1), broken, offset(3))
    result = offsets_log(path)
    assert result.exit_code == 1 and f"{path}: byte {len(offset(1))}: offset 1: " in result.stderr
    assert "| offset: 2 " in result.stdout and "key: Error at offset 1, skipping. " in result.stdout


def test_path_without_segments_is_rejected(tmp_path: Path, data_directory: Path) -> None:
    assert f"{tmp_path} contains no segment" in offsets_log(tmp_path).stderr
    odd = tmp_path / "notes.log"
    odd.write_text("x")
    assert f"{odd} is not a log segment" in offsets_log(odd).stderr
    assert "either PATHS or --bootstrap-server" in offsets_log().stderr
    read_only = tmp_path / "read-only"
    shutil.copytree(segments(data_directory)[0].parent, read_only)
    for each in read_only.iterdir():
        each.chmod(0o444)
    assert offsets_log(read_only).exit_code == 0

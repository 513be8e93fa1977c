"""Processes of group members whose rebalances are caused on purpose."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from chaos.submitted_application import process_table, signal_all
from kafka_jars import java, kafka_jars
from support.raw_broker import RawConnection

from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import Subscription, TopicPartition
from spark_groupsource.wire.consumer_protocol import decode_assignment, encode_subscription
from spark_groupsource.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)

_DIRECTORY = Path(__file__).parent
_CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
OWN = frozenset({"own", "spark"})
"""Libraries whose members are of this package."""
SLOW_ASSIGNOR = "chaos.slow_assignor:SlowRange"
SESSION_MS, POLL_MS = 6_000, 9_000
STATIC_SESSION_MS = 90_000
# a micro-batch on a busy machine takes seconds
SPARK_SESSION_MS, SPARK_POLL_MS = 10_000, 20_000


class World(NamedTuple):
    """How the members of a group are configured.

    Attributes:
        has_shared_client: all members have the same client id.
        share: part of the injected rebalances, relative to the other groups.
        pace: factor of the timeouts, for a busy machine.
    """

    libraries: tuple[str, ...]
    assignors: tuple[str, ...]
    is_static: bool = False
    commit_s: float = 0.5
    heartbeat_ms: int = 500
    has_shared_client: bool = False
    share: float = 1.0
    pace: float = 1.0

    @property
    def session_ms(self) -> int:
        """A static member must have time to be started again."""
        if "spark" in self.libraries:
            return int(SPARK_SESSION_MS * self.pace)
        return int((STATIC_SESSION_MS if self.is_static else SESSION_MS) * self.pace)

    @property
    def poll_ms(self) -> int:
        return max(int((SPARK_POLL_MS if "spark" in self.libraries else POLL_MS) * self.pace), self.session_ms)

    @property
    def start_s(self) -> float:
        """Time in which the members of a group are started and Stable."""
        return (300 if "spark" in self.libraries else 100) * self.pace


class Member:
    """A member in a process that obeys commands."""

    def __init__(self, library: str, config: dict[str, Any]) -> None:
        self.library = library
        self.config = config
        with open(config["log"], "a") as log:
            self.process = subprocess.Popen(
                _command(library, config),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                text=True,
            )

    @property
    def client_id(self) -> str:
        # members of this package are numbered
        return f"{self.config['client_id']}-0" if self.library in OWN else str(self.config["client_id"])

    @property
    def can_obey(self) -> bool:
        """False for Kafka's console consumer, which takes no commands."""
        return self.library != "console"

    @property
    def has_poll_timer(self) -> bool:
        """True if it leaves when it has not polled for max.poll.interval.ms, and can be made to do so."""
        return self.library not in ("console", *OWN)

    @property
    def can_subscribe(self) -> bool:
        """True if its subscription can be changed while it runs."""
        return self.library not in ("console", "spark")

    def command(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to all processes of the member."""
        signal_all(self._processes(), number)

    def close(self) -> None:
        """Leaves the group by a call of the client and ends."""
        if self.can_obey:
            self.command("close")
        else:
            self.process.terminate()
        self._wait()

    def terminate(self) -> None:
        """Leaves the group because of SIGTERM and ends."""
        self.process.terminate()
        self._wait()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self._wait()

    def _processes(self) -> list[int]:
        if self.library != "spark":
            return [self.process.pid]
        table, found = process_table(), [self.process.pid]
        for pid in found:
            found += [child for child, (parent, _) in table.items() if parent == pid]
        return found

    def _wait(self) -> None:
        self.process.wait(90)
        assert self.process.stdin is not None
        self.process.stdin.close()


def _command(library: str, config: dict[str, Any]) -> list[str]:
    if library == "spark":
        return [sys.executable, str(_DIRECTORY / "causes_application.py"), json.dumps(config)]
    if library not in ("java", "console"):
        return [sys.executable, str(_DIRECTORY / "causes_member.py"), json.dumps({**config, "library": library})]
    settings = {
        "client.id": config["client_id"],
        "enable.auto.commit": str(bool(config["commit_s"])).lower(),
        "auto.commit.interval.ms": int(config["commit_s"] * 1_000) or 5_000,
        "session.timeout.ms": config["session_ms"],
        "heartbeat.interval.ms": config["heartbeat_ms"],
        "max.poll.interval.ms": config["poll_ms"],
        "metadata.max.age.ms": 1_000,
        "partition.assignment.strategy": ",".join(map(_assignor_class, config["assignors"])),
    }
    if config["instance_id"]:
        settings["group.instance.id"] = config["instance_id"]
    jars = f"{kafka_jars()}/*"
    if library == "java":
        settings |= {"bootstrap.servers": config["bootstrap"], "group.id": config["group"]}
        command = [java(), *_JVM, "-cp", f"{_compiled(config['scratch'])}:{jars}", "CausesMember"]
        return [*command, ",".join(config["topics"]), *(f"{key}={value}" for key, value in settings.items())]
    properties = Path(config["scratch"]) / f"{config['group']}-{config['client_id']}.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [java(), *_JVM, "-cp", jars, _CONSOLE, "--bootstrap-server", config["bootstrap"]]
    command += ["--group", config["group"], "--include", "|".join(config["topics"])]
    return [*command, "--command-config", str(properties)]


def _assignor_class(name: str) -> str:
    classes = {"range": "Range", "roundrobin": "RoundRobin", "cooperative-sticky": "CooperativeSticky"}
    return f"org.apache.kafka.clients.consumer.{classes[name]}Assignor"


@cache
def _compiled(directory: str) -> str:
    """Compiles the member in Java; returns the directory of the class."""
    source = _DIRECTORY / "CausesMember.java"
    compiler = str(Path(java()).resolve().with_name("javac"))
    subprocess.run([compiler, "-cp", f"{kafka_jars()}/*", "-d", directory, str(source)], check=True)
    return directory


class StuckMember:
    """A member that sends heartbeats, and stops to rejoin when it is `stuck`."""

    def __init__(self, bootstrap: str, group: str, topics: Sequence[str], world: World) -> None:
        self._bootstrap, self._group, self._topics, self._world = bootstrap, group, topics, world
        self.client_id = "test"
        self.is_stuck = self.is_ending = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.is_ending = True
        self._thread.join(30)

    def _run(self) -> None:
        with RawConnection(self._bootstrap) as connection:
            member_id, generation, owned = self._join(connection, "")
            committed = 0.0
            while not self.is_ending:
                beat = HeartbeatRequest(
                    group_id=self._group, generation_id=generation, member_id=member_id, group_instance_id=None
                )
                code = connection.call(beat, 4).error_code
                if code == ErrorCode.REBALANCE_IN_PROGRESS and not self.is_stuck:
                    member_id, generation, owned = self._join(connection, member_id)
                elif code and code != ErrorCode.REBALANCE_IN_PROGRESS:
                    return
                if self._world.commit_s and time.monotonic() - committed > self._world.commit_s:
                    committed = time.monotonic()
                    self._commit(connection, member_id, generation, owned)
                time.sleep(0.3)
            leave(connection, self._group, member_id)

    def _join(self, connection: RawConnection, member_id: str) -> tuple[str, int, tuple[TopicPartition, ...]]:
        while True:
            joined = connection.call(join_request(self._group, member_id, self._topics, self._world), 7)
            member_id = joined.member_id
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                continue
            assert not joined.error_code and joined.leader != member_id, joined
            assigned = SyncGroupRequest(
                group_id=self._group,
                generation_id=joined.generation_id,
                member_id=member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocol_name=joined.protocol_name,
                assignments=[],
            )
            synced = connection.call(assigned, 5)
            if not synced.error_code:
                owned = decode_assignment(bytes(synced.assignment)).partitions if synced.assignment else ()
                return member_id, joined.generation_id, owned

    def _commit(
        self, connection: RawConnection, member_id: str, generation: int, owned: Sequence[TopicPartition]
    ) -> None:
        row = OffsetCommitRequest.OffsetCommitRequestTopic
        part = row.OffsetCommitRequestPartition
        topics = [
            row(
                name=tp.topic,
                partitions=[
                    part(
                        partition_index=tp.partition,
                        committed_offset=1,
                        committed_leader_epoch=-1,
                        committed_metadata="",
                    )
                ],
            )
            for tp in owned
        ]
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=None,
            topics=topics,
        )
        connection.call(request, 8)


def join_request(group: str, member_id: str, topics: Sequence[str], world: World) -> JoinGroupRequest:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol
    metadata = encode_subscription(Subscription(tuple(topics)), 1)
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=world.session_ms,
        rebalance_timeout_ms=world.poll_ms,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[protocol(name=name, metadata=metadata) for name in world.assignors],
        reason=None,
    )


def leave(connection: RawConnection, group: str, member_id: str) -> None:
    entry = LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=None, reason="closed")
    connection.call(LeaveGroupRequest(group_id=group, members=[entry]), 5)

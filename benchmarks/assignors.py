"""Sticky assignment of 10,000 partitions to 1,000 members, beside Kafka's assignor.

    python benchmarks/run.py --only assignors

Both make a fresh assignment, and one after a member has left, in alternating rounds; the JVM stays, so that its
optimizing compiler works for it. Compiles `java/StickyAssignments.java` with the JDK's `javac`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from bench.context import Context, Measure
from bench.figures import Figure, Rounds

from spark_groupsource.assign import load_assignor
from spark_groupsource.model import GroupMember, Subscription

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "jobs"))

from kafka_jars import java, kafka_jars  # noqa: E402

MEMBERS, PARTITIONS = 1_000, 10_000
_WARM_ROUNDS = 3


@contextmanager
def jvm() -> Iterator[subprocess.Popen[str]]:
    """Yields a JVM that makes one pair of assignments for each line of its standard input."""
    compiler = shutil.which("javac")
    if compiler is None:
        raise RuntimeError("No javac on the PATH. Install a JDK.")
    with tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as directory:
        jars = str(kafka_jars() / "*")
        source = HERE / "java" / "StickyAssignments.java"
        subprocess.run([compiler, "-cp", jars, "-d", directory, str(source)], check=True)
        command = [java(), "-Xmx512m", "-cp", f"{directory}:{jars}", source.stem, str(MEMBERS), str(PARTITIONS)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                yield process
            finally:
                assert process.stdin is not None
                process.stdin.close()


def kafka_round(process: subprocess.Popen[str]) -> tuple[float, float, int]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("next\n")
    process.stdin.flush()
    fresh, again, kept = process.stdout.readline().split()
    return int(fresh) / 1e6, int(again) / 1e6, int(kept)


def own_round() -> tuple[float, float, int]:
    """Returns the ms of both assignments, and how many partitions stayed with their owner."""
    counts = {"load": PARTITIONS}
    names = [f"member-{number:05}" for number in range(MEMBERS)]
    members = [GroupMember(name, Subscription(topics=("load",))) for name in names]
    began = time.perf_counter()
    first = load_assignor("cooperative-sticky").assign(counts, members)
    fresh_s = time.perf_counter() - began
    rest = [
        GroupMember(name, Subscription(topics=("load",), owned_partitions=tuple(first[name]), generation_id=1))
        for name in names[1:]
    ]
    began = time.perf_counter()
    second = load_assignor("cooperative-sticky").assign(counts, rest)
    again_s = time.perf_counter() - began
    kept = sum(len(set(second[name]) & set(first[name])) for name in names[1:])
    return fresh_s * 1000, again_s * 1000, kept


def figures(context: Context) -> Iterator[Figure]:
    rounds = Rounds()
    with jvm() as process:
        for number in range(_WARM_ROUNDS + 2 * context.rounds):
            found = {"ours": own_round(), "Kafka's assignor": kafka_round(process)}
            kept = {name: row[2] for name, row in found.items()}
            if len(set(kept.values())) != 1:
                raise RuntimeError(f"partitions that stayed with their owner: {kept}")
            if number >= _WARM_ROUNDS:
                for name, (fresh_ms, again_ms, _) in found.items():
                    rounds.add(f"{name} fresh", fresh_ms)
                    rounds.add(f"{name} again", again_ms)
    title = f"sticky, {MEMBERS:,} members, {PARTITIONS:,} partitions"
    for case, key in (("fresh", "fresh"), ("after a member has left", "again")):
        own, rival = rounds.values[f"ours {key}"], rounds.values[f"Kafka's assignor {key}"]
        yield Figure(title, case, "ms", own, "Kafka's assignor", rival, least_ratio=1.0)


MEASURES = (Measure("assignors", figures, 120),)

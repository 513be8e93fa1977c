"""Class data sharing archives of Spark and Kafka, built once per machine.

A JVM that maps such an archive does not parse and verify its classes again, which halves the processor time of a start.
An archive is kept beside the jars that `kafka_jars` fetched, under a name made of the Java version and the jars.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from kafka_jars import UnavailableError, cache_directory, java, kafka_jars
from real_kafka import RealKafka
from support import startup
from support.java_tools import spark_jars
from support.topics import create_topic, produce

BUILD_TIMEOUT_S = 300
_APPLICATION = Path(__file__).with_name("class_archive_application.py")


def spark_archive() -> Path | None:
    """The archive for ``spark-submit``, built when it is missing; None where this Java cannot write one."""
    return _archive("spark", spark_jars().glob("*.jar"), _run_spark)


def kafka_archive() -> Path | None:
    """The archive for Kafka's broker and tools, built when it is missing; None where this Java cannot write one."""
    return _archive("kafka", kafka_jars().glob("*.jar"), _run_kafka)


def _archive(name: str, jars: Iterable[Path], run: Callable[[str], None]) -> Path | None:
    """The archive of a class path; `run` starts a JVM with the option it is given and lets it load its classes."""
    target = cache_directory() / f"classes-{name}-{_key(jars)}.jsa"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # a second process waits for the first instead of building it too
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as work:
                written = Path(work) / "archive.jsa"
                with suppress(UnavailableError, subprocess.SubprocessError):
                    run(f"-XX:ArchiveClassesAtExit={written} -Xlog:cds*=off")
                # without an archive the tests run all the same, and slower; what is missing here fails there by name
                if not written.exists():
                    return None
                written.rename(target)
    return target


def _key(jars: Iterable[Path]) -> str:
    """A JVM accepts an archive only with the Java and the jars that wrote it."""
    version = subprocess.run([java(), "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    # the directory too: the class path holds absolute names
    lines = sorted(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in jars)
    return hashlib.sha256("\n".join([version, *lines]).encode()).hexdigest()[:12]


def _run_spark(option: str) -> None:
    from spark_groupsource.broker.embedded import EmbeddedBroker

    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', startup.JVM_OPTIONS)} {option}"
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": options, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    submit = str(Path(sys.executable).with_name("spark-submit"))
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory() as directory:
        create_topic(broker.bootstrap_servers, "classes", 2)
        produce(broker.bootstrap_servers, "classes", ((n % 2, None, b"%d" % n) for n in range(20)))
        command = [submit, "--master", "local[2]", "--conf", "spark.ui.enabled=false", str(_APPLICATION)]
        command += [broker.bootstrap_servers, directory]
        subprocess.run(command, env=environment, capture_output=True, timeout=BUILD_TIMEOUT_S, check=True)


def _run_kafka(option: str) -> None:
    # of Kafka's variables this one reaches the broker alone, whose classes include those of the tools' clients
    before = os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", startup.JVM_OPTIONS)
    with patch.dict(os.environ, KAFKA_JVM_PERFORMANCE_OPTS=f"{before} {option}"):
        with RealKafka({"offsets.topic.num.partitions": "1"}) as kafka:
            create_topic(kafka.bootstrap_servers, "classes", 2)
            produce(kafka.bootstrap_servers, "classes", [(0, None, b"1")])

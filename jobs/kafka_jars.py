"""Fetches Java archives with the Apache Ivy that ships inside PySpark, once, into a cache under the home directory.

Knows artifact names and the cache's layout; knows nothing of running what it fetched. The only things needed are
PySpark and Java. ``XDG_CACHE_HOME`` moves the cache; ``GROUPSOURCE_IVY_SETTINGS`` names an Ivy settings file where the
public repository is reached through a mirror.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

KAFKA_VERSION = "4.3.0"
JAVA_MINIMUM = 17
FETCH_TIMEOUT_S = 900


class Unavailable(Exception):
    """What this machine lacks; the message names the cause and the mend."""


class Artifact(NamedTuple):
    """One module of the public repository; `alone` leaves its own dependencies out."""

    organisation: str
    name: str
    revision: str
    alone: bool = False


KAFKA = (
    Artifact("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    Artifact("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    # without a binding Kafka's log is lost, and with it the reason of a failed start
    Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
)
# The newest set that resolves; this connector runs under PySpark 4.2 and 4.3.
SPARK_CONNECTOR = (
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", alone=True),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", alone=True),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.1", alone=True),
    Artifact("org.apache.commons", "commons-pool2", "2.12.1", alone=True),
)


def kafka_jars() -> Path:
    """Directory with the jars of an Apache Kafka broker and its tools, fetched if they are not there yet.

    Raises: Unavailable when Java, PySpark or the repository is missing.
    """
    return fetch(f"kafka-{KAFKA_VERSION}", KAFKA)


def spark_connector_jars() -> list[Path]:
    """Jars of Spark's own Kafka source, to be given as ``spark.jars``; fetched if they are not there yet.

    Raises: Unavailable when Java, PySpark or the repository is missing.
    """
    return sorted(fetch(f"spark-kafka-connector-{SPARK_CONNECTOR[0].revision}", SPARK_CONNECTOR).glob("*.jar"))


def cache_directory() -> Path:
    """Where fetched things are kept, outside the working tree."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "groupsource"


def fetch(name: str, artifacts: tuple[Artifact, ...]) -> Path:
    """Directory `name` of the cache, holding the jars of `artifacts`.

    The directory appears by one rename, so it is complete wherever it exists; a lock keeps a second process waiting
    instead of fetching twice.

    Raises: Unavailable when Java, PySpark or the repository is missing.
    """
    target = cache_directory() / name
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"cannot create {target.parent} ({error}); set XDG_CACHE_HOME to a writable place") from error
    with _locked(target.parent / f"{name}.lock"):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as work:
                _retrieve(artifacts, Path(work)).rename(target)
    return target


def java() -> str:
    """Path of a Java executable that is new enough.

    Raises: Unavailable when there is none.
    """
    home = os.environ.get("JAVA_HOME")
    executable = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if executable is None:
        where = f"in JAVA_HOME={home}" if home else "on the PATH"
        raise Unavailable(f"no java {where}; install Java {JAVA_MINIMUM} or newer, or set JAVA_HOME")
    _check_version(executable)
    return executable


@cache
def _check_version(executable: str) -> None:
    """Starts a JVM, so each executable is asked once in a process."""
    answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60)
    version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if answer.returncode != 0 or version is None:
        raise Unavailable(f"{executable} -version fails: {answer.stderr.strip()}; mend or replace this Java")
    if int(version[1]) < JAVA_MINIMUM:
        raise Unavailable(f"{executable} is Java {version[1]}; Java {JAVA_MINIMUM} or newer is needed, see JAVA_HOME")


def _retrieve(artifacts: tuple[Artifact, ...], work: Path) -> Path:
    """Runs Ivy in `work`; returns the directory of the jars."""
    jars = work / "jars"
    dependencies = "\n".join(
        f'<dependency org="{a.organisation}" name="{a.name}" rev="{a.revision}" conf="default->default"'
        f' transitive="{str(not a.alone).lower()}"/>'
        for a in artifacts
    )
    module = work / "ivy.xml"
    module.write_text(
        '<ivy-module version="2.0"><info organisation="groupsource" module="fetched"/>\n'
        f"<dependencies>\n{dependencies}\n</dependencies></ivy-module>\n"
    )
    command = [java(), "-jar", str(_ivy_jar()), "-ivy", str(module), "-confs", "default", "-types", "jar", "bundle"]
    command += ["-cache", str(work / "ivy")]
    command += ["-retrieve", str(jars / "[artifact]-[revision](-[classifier]).[ext]")]
    settings = os.environ.get("GROUPSOURCE_IVY_SETTINGS")
    if settings:
        command[3:3] = ["-settings", settings]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, cwd=work)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"fetching {artifacts[0].name} took more than {FETCH_TIMEOUT_S} s; try again") from error
    found = {path.name for path in jars.glob("*.jar")}
    missing = [a for a in artifacts if f"{a.name}-{a.revision}.jar" not in found]
    if run.returncode != 0 or missing:
        names = ", ".join(f"{a.organisation}:{a.name}:{a.revision}" for a in missing or artifacts)
        raise Unavailable(
            f"Ivy could not fetch {names}; is Maven Central reachable from here? Behind a mirror, set "
            f"GROUPSOURCE_IVY_SETTINGS to an Ivy settings file. Ivy said:\n{_complaints(run.stdout + run.stderr)}"
        )
    return jars


def _complaints(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"unresolved|not found|error|exception|refused|timed", line, re.I)]
    return "\n".join((telling or lines)[-12:])


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for jar in sorted(Path(location, "jars").glob("ivy-*.jar")):
            return jar
    raise Unavailable("PySpark with its jars is not installed here; run: pip install pyspark")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Run as a script: says whether the Java here will do."""
    try:
        java()
    except Unavailable as error:
        print(f"java: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

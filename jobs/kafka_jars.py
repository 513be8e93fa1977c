"""Downloads the jars of Apache Kafka and Spark's Kafka connector.

Apache Ivy, which PySpark contains, downloads them, so that only PySpark and Java are required. ``XDG_CACHE_HOME`` sets
the parent directory of the cache (default ``~/.cache``); ``GROUPSOURCE_IVY_SETTINGS`` is an Ivy settings file, for
example for a mirror of Maven Central.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

KAFKA_VERSION = "4.4.0"
JAVA_MINIMUM = 17
FETCH_TIMEOUT_S = 900


class UnavailableError(Exception):
    """A program or a file that is required is not available; the message names the remedy."""


class Artifact(NamedTuple):
    """A Maven artifact; `intransitive` excludes its dependencies."""

    organization: str
    name: str
    revision: str
    intransitive: bool = False


# without an SLF4J binding, Kafka logs nothing, not even the cause of a failed startup
_LOGGING = Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")
# the newest versions that resolve together
SPARK_CONNECTOR_DEPENDENCIES = (
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", intransitive=True),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.1", intransitive=True),
    Artifact("org.apache.commons", "commons-pool2", "2.12.1", intransitive=True),
)


def kafka_jars(release: str = KAFKA_VERSION) -> Path:
    """The directory of the jars of an Apache Kafka broker and its tools, of Kafka 4 or later, downloaded on first use.

    Raises: UnavailableError if Java, PySpark or the repository is missing.
    """
    artifacts = (Artifact("org.apache.kafka", name, release) for name in ("kafka_2.13", "kafka-tools"))
    return fetch(f"kafka-{release}", (*artifacts, _LOGGING))


def spark_connector_jars() -> list[Path]:
    """The jars of Spark's Kafka source, for ``spark.jars``, downloaded on first use.

    Raises: UnavailableError if Java, PySpark or the repository is missing.
    """
    revision = spark_connector_revision()
    connector = Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", revision, intransitive=True)
    return sorted(fetch(f"spark-kafka-connector-{revision}", (connector, *SPARK_CONNECTOR_DEPENDENCIES)).glob("*.jar"))


def spark_connector_revision() -> str:
    """The release of the connector for the installed PySpark: that of 4.2 needs classes that 4.0 and 4.1 lack."""
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    return {"4.0": "4.0.1", "4.1": "4.1.1"}.get(version[:3], "4.2.0")


def cache_directory() -> Path:
    """The cache directory, outside the working tree."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "groupsource"


def fetch(name: str, artifacts: tuple[Artifact, ...]) -> Path:
    """The cache directory `name` with the jars of `artifacts`.

    Raises: UnavailableError if Java, PySpark or the repository is missing.
    """
    return cached_directory(name, lambda work: _retrieve(artifacts, work))


def cached_directory(name: str, download: Callable[[Path], Path]) -> Path:
    """The cache directory `name`; `download` gets a directory to work in, and returns the one with the content.

    An atomic rename creates the directory, so an existing one is complete. A lock makes concurrent processes wait.

    Raises: UnavailableError if the cache cannot be written; what `download` raises.
    """
    target = cache_directory() / name
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(
            f"Cannot create {target.parent}: {error}. Set XDG_CACHE_HOME to a writable directory."
        ) from error
    with _locked(target.parent / f"{name}.lock"):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as work:
                download(Path(work)).rename(target)
    return target


def java() -> str:
    """The path of a Java executable of a supported version.

    Raises: UnavailableError.
    """
    home = os.environ.get("JAVA_HOME")
    executable = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if executable is None:
        location = f"in JAVA_HOME={home}" if home else "on the PATH"
        raise UnavailableError(f"No java {location}. Install Java {JAVA_MINIMUM} or newer, or set JAVA_HOME.")
    _check_version(executable)
    return executable


@cache
def _check_version(executable: str) -> None:
    """Starts a JVM; the result is cached per executable."""
    run = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60)
    version = re.search(r'version "(\d+)', run.stderr + run.stdout)
    if run.returncode != 0 or version is None:
        raise UnavailableError(f"{executable} -version failed: {run.stderr.strip()}. Fix or replace this Java.")
    if int(version[1]) < JAVA_MINIMUM:
        needed = f"Java {JAVA_MINIMUM} or newer is required"
        raise UnavailableError(f"{executable} is Java {version[1]}; {needed}. Set JAVA_HOME.")


def _retrieve(artifacts: tuple[Artifact, ...], work: Path) -> Path:
    """Runs Ivy in `work`; returns the directory of the jars."""
    jars = work / "jars"
    dependencies = "\n".join(
        f'<dependency org="{a.organization}" name="{a.name}" rev="{a.revision}" conf="default->default"'
        f' transitive="{str(not a.intransitive).lower()}"/>'
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
        name = artifacts[0].name
        raise UnavailableError(f"Downloading {name} took more than {FETCH_TIMEOUT_S} s. Try again.") from error
    found = {path.name for path in jars.glob("*.jar")}
    missing = [a for a in artifacts if f"{a.name}-{a.revision}.jar" not in found]
    if run.returncode != 0 or missing:
        names = ", ".join(f"{a.organization}:{a.name}:{a.revision}" for a in missing or artifacts)
        raise UnavailableError(
            f"Ivy could not download {names}. Check the connection to Maven Central; to use a mirror, set "
            f"GROUPSOURCE_IVY_SETTINGS to an Ivy settings file. Output of Ivy:\n{_error_lines(run.stdout + run.stderr)}"
        )
    return jars


def _error_lines(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    relevant = [line for line in lines if re.search(r"unresolved|not found|error|exception|refused|timed", line, re.I)]
    return "\n".join((relevant or lines)[-12:])


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for jar in sorted(Path(location, "jars").glob("ivy-*.jar")):
            return jar
    raise UnavailableError("PySpark with its jars is not installed. Run: pip install pyspark.")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Checks the Java of this machine; returns the exit status."""
    try:
        java()
    except UnavailableError as error:
        print(f"java: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Start-up options of the JVMs and Pythons that a test run starts.

A run starts about a hundred JVMs that run for seconds. The options change how fast a process starts, not what it
does; a variable that the environment already has is left as it is.
"""

from __future__ import annotations

import os
from functools import partialmethod
from inspect import signature
from pathlib import Path

from click.testing import CliRunner

# the optimizing compiler and collector threads cost more than they gain in a JVM that runs for seconds
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# read by Spark's launcher and its scripts; the last one by Kafka's scripts and by `RealKafka`
_VARIABLES = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS")
_SITE = str(Path(__file__).with_name("site"))


def configure() -> None:
    """Sets the environment of every process started from now on."""
    for variable in _VARIABLES:
        os.environ.setdefault(variable, JVM_OPTIONS)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if _SITE not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, _SITE])


def python_path(*directories: Path) -> str:
    """Returns a PYTHONPATH that begins with `directories`; replaced by them alone, processes would start slowly."""
    return os.pathsep.join([*map(str, directories), *filter(None, [os.environ.get("PYTHONPATH")])])


def share_classes(variable: str, archive: Path | None) -> None:
    """Lets the JVMs that read `variable` map the classes of an archive; without effect where there is none."""
    options = os.environ.get(variable, "")
    if archive is not None and "-XX:SharedArchiveFile" not in options:
        # a JVM that cannot use the archive, of another class path for example, loads its classes without a message
        os.environ[variable] = f"{options} -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds*=off".strip()


def separate_output_of_click() -> None:
    """Makes `CliRunner` of click 8.1 return standard error apart from standard output, as that of 8.2 does."""
    if "mix_stderr" in signature(CliRunner).parameters:
        CliRunner.__init__ = partialmethod(CliRunner.__init__, mix_stderr=False)  # type: ignore[method-assign,assignment]

"""Checks of this machine: Python of the workers, Spark, Java, data source."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spark_groupsource.cli.compile_pyspark import is_compiled
from spark_groupsource.cli.doctor_findings import Check, CheckResult, Facts, Status
from spark_groupsource.common.net import CAN_ACKNOWLEDGE_NOW
from spark_groupsource.errors import GroupSourceError

_TIMEOUT_S = 30
_OLDEST_SPARK, _OLDEST_JAVA = (4, 0), 17
_UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
_SOCKET_DIRECTORY = "spark.python.unix.domain.socket.dir"
# run by the interpreter of the workers, as Spark starts it
_WORKER_SCRIPT = """
import json, sys
found = {"python": list(sys.version_info[:2]), "spark": None, "home": None, "source": None, "error": None}
found["has_admission_control"] = found["has_unix_sockets"] = False
try:
    import pyspark
    found["spark"], found["home"] = pyspark.__version__, pyspark.__path__[0]
    from pyspark_groupsource import DefaultSource
    found["source"] = DefaultSource.name()
    from spark_groupsource.source.spark.admission_control import HAS_ADMISSION_CONTROL
    from spark_groupsource.source.process.reader_process import can_use_unix_socket
    found["has_admission_control"], found["has_unix_sockets"] = HAS_ADMISSION_CONTROL, can_use_unix_socket()
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


def _read_worker(_: None, facts: Facts) -> dict[str, Any]:
    python = os.environ.get("PYSPARK_PYTHON") or "python3"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    try:
        run = subprocess.run(
            [python, "-c", _WORKER_SCRIPT], capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment
        )
        found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        raise GroupSourceError(
            f"Running {python} (PYSPARK_PYTHON) failed: {error}. Set PYSPARK_PYTHON to the Python interpreter that has "
            "PySpark and spark-groupsource."
        ) from error
    return {**found, "path": python, "own": list(sys.version_info[:2])}


def evaluate_python(facts: dict[str, Any]) -> Iterable[CheckResult]:
    """Spark requires the same minor version in driver and workers."""
    path = facts["path"]
    version, own = (".".join(map(str, facts[name])) for name in ("python", "own"))
    if version != own:
        fix = "Set PYSPARK_PYTHON to an interpreter of the same minor version."
        yield CheckResult(Status.BAD, f"Workers run {path} with Python {version}, this process has {own}.", fix)
    else:
        yield CheckResult(Status.GOOD, f"Workers run {path}, Python {version}.")


def evaluate_spark(facts: dict[str, Any]) -> Iterable[CheckResult]:
    """PySpark in the interpreter of the workers."""
    version = facts["spark"]
    oldest = ".".join(map(str, _OLDEST_SPARK))
    if version is None:
        fix = "On a machine that runs Spark, run: pip install 'spark-groupsource[spark]'."
        yield CheckResult(Status.UNKNOWN, f"PySpark is not installed for {facts['path']}.", fix)
    elif tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST_SPARK:
        yield CheckResult(Status.BAD, f"PySpark {version} is too old.", f"Use PySpark {oldest} or later.")
    elif facts["has_admission_control"] or facts["source"] is None:
        yield CheckResult(Status.GOOD, f"PySpark {version}.")
    else:
        yield CheckResult(Status.GOOD, f"PySpark {version}, without admission control (docs/runtimes.md).")


def evaluate_source(facts: dict[str, Any]) -> Iterable[CheckResult]:
    """Spark finds data sources in modules named ``pyspark_*`` of the workers' interpreter."""
    if facts["source"] is None:
        fix = f"Install spark-groupsource for {facts['path']}, or set PYSPARK_PYTHON."
        yield CheckResult(Status.BAD, f"Spark does not find the data source groupsource: {facts['error']}.", fix)
    else:
        yield CheckResult(Status.GOOD, f"Spark finds the data source {facts['source']}.")


def _read_java(_: None, facts: Facts) -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"
    try:
        run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise GroupSourceError(
            f"Running {java} failed: {error}. Install Java {_OLDEST_JAVA} or later and set JAVA_HOME."
        ) from error
    return run.stderr


def evaluate_java(output: str) -> Iterable[CheckResult]:
    """Evaluates the output of ``java -version``."""
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', output)
    if found is None:
        yield CheckResult(Status.UNKNOWN, "The version of Java is not known.", "Run: java -version.")
    elif int(found[1]) < _OLDEST_JAVA:
        fix = f"Set JAVA_HOME to Java {_OLDEST_JAVA} or later."
        yield CheckResult(Status.BAD, f"Java {found[1]} is too old for Spark.", fix)
    else:
        yield CheckResult(Status.GOOD, f"Java {found[1]}.")


def _read_defaults(_: None, facts: Facts) -> str | None:
    if facts["python"]["source"] is not None and not facts["python"]["has_unix_sockets"]:
        return None
    home = os.environ.get("SPARK_HOME") or facts["python"]["home"]
    path = Path(os.environ.get("SPARK_CONF_DIR") or Path(home) / "conf") / "spark-defaults.conf"
    texts = [os.environ.get("PYSPARK_SUBMIT_ARGS", "")]
    try:
        texts.append(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        # the file is optional
        pass
    return "\n".join(texts)


def evaluate_sockets(defaults: str | None) -> Iterable[CheckResult]:
    """Evaluates ``spark-defaults.conf`` and the arguments of spark-submit; a session may set it too.

    None for a Spark without the setting.
    """
    if defaults is None:
        yield CheckResult(Status.GOOD, f"This Spark has no {_UNIX_SOCKETS} (since 4.1).")
        return
    if (_value(_UNIX_SOCKETS, defaults) or "").lower() == "true":
        if _value("spark.master", defaults) == "yarn" and _value(_SOCKET_DIRECTORY, defaults) is None:
            fact = f"{_UNIX_SOCKETS} is true, and java.io.tmpdir of a YARN container is too long for a socket."
            yield CheckResult(Status.BAD, fact, f"Set {_SOCKET_DIRECTORY} to a short directory of every node, as /tmp.")
        else:
            yield CheckResult(Status.GOOD, f"{_UNIX_SOCKETS} is true.")
    elif CAN_ACKNOWLEDGE_NOW:
        yield CheckResult(Status.GOOD, f"{_UNIX_SOCKETS} is not needed on Linux.")
    else:
        fix = "Set it to true when the session is created: Spark then sends tasks to Python without TCP."
        yield CheckResult(Status.UNKNOWN, f"{_UNIX_SOCKETS} is not true in spark-defaults.conf.", fix)


def _value(name: str, defaults: str) -> str | None:
    """Returns the last value of a setting; a master is an option of its own for spark-submit."""
    found = re.findall(rf"^(?!\s*#).*?{re.escape(name)}[\s=]+([^\s'\"]+)", defaults, re.MULTILINE)
    if name == "spark.master":
        found += re.findall(r"--master[\s=]+([^\s'\"]+)", defaults)
    return found[-1] if found else None


def _read_archive(_: None, facts: Facts) -> bool | None:
    home = os.environ.get("SPARK_HOME") or facts["python"]["home"]
    archive = Path(home) / "python" / "lib" / "pyspark.zip"
    return is_compiled(archive) if archive.is_file() else None


def evaluate_archive(is_archive_compiled: bool | None) -> Iterable[CheckResult]:
    """Evaluates whether PySpark's archive has compiled modules; None for no archive."""
    if is_archive_compiled is False:
        fix = "Run groupsource compile-pyspark: a query starts about a second earlier."
        yield CheckResult(Status.UNKNOWN, "PySpark's archive has no compiled modules for this Python version.", fix)
    else:
        yield CheckResult(Status.GOOD, "Spark's Python processes load compiled modules.")


def _worker(_: None, facts: Facts) -> Any:
    return facts["python"]


MACHINE_CHECKS: tuple[Check[None], ...] = (
    Check("python", _read_worker, evaluate_python),
    Check("spark", _worker, evaluate_spark, needs="python"),
    Check("java", _read_java, evaluate_java, needs="spark"),
    Check("data source", _worker, evaluate_source, needs="spark"),
    Check("unix sockets", _read_defaults, evaluate_sockets, needs="spark"),
    Check("pyspark archive", _read_archive, evaluate_archive, needs="spark"),
)
"""Checks without a cluster."""

"""Submissions to YARN by docs/yarn.md, and their containers' processes."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from child_processes import start_process, stop_process
from support.hadoop_cluster import JARS, HadoopCluster
from support.waiting import wait_until

import spark_groupsource

_PACKAGE = Path(spark_groupsource.__file__).parent
_PAGE = _PACKAGE.parent / "docs" / "yarn.md"
_REQUIREMENTS = ("pyarrow", "numpy", "kafka-python", "google-crc32c", "lz4")
# parts of pyarrow and numpy that no query imports
_LEFT_OUT = re.compile(r"/(tests|include|__pycache__)/|\.(pxd|pyx|lib|a)$")
# minutes on a busy machine: JVMs of the driver and of the executors start one after the other
_TIMEOUT_S = 900
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SETTINGS = {
    "spark.yarn.jars": f"local:{JARS}/*",
    "spark.ui.enabled": "false",
    "spark.executor.instances": "2",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": _JVM,
    "spark.driver.extraJavaOptions": _JVM,
    "spark.yarn.submit.waitAppCompletion": "true",
    "spark.yarn.report.interval": "500ms",
}


def page_command(*words: str) -> str:
    """Returns the only command of docs/yarn.md with all of these words, on one line."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", _PAGE.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    (found,) = [line for line in lines if all(word in line for word in words)]
    return re.sub(r"\s+", " ", found)


def make_environment(directory: Path, *, has_package: bool = True) -> Path:
    """Makes a virtual environment with the installed dependencies, as links or copies; returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True, timeout=120)
    packages = next(directory.glob("lib/python*/site-packages"))
    for name in _REQUIREMENTS:
        for file in importlib.metadata.files(name) or ():
            if not _LEFT_OUT.search(str(file)) and ".." not in file.parts:
                (packages / file.parent).mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(file.locate()), packages / file)
    if has_package:
        shutil.copytree(_PACKAGE, packages / _PACKAGE.name)
        shutil.copy2(_PACKAGE.parent / "pyspark_groupsource.py", packages)
    return directory / "bin" / "python"


def zip_package(path: Path) -> Path:
    """Writes the package alone, as in its wheel, to `path`; returns it."""
    with zipfile.ZipFile(path, "w") as archive:
        files = [each for each in _PACKAGE.rglob("*") if each.is_file() and "__pycache__" not in each.parts]
        for file in (*files, _PACKAGE.parent / "pyspark_groupsource.py"):
            archive.write(file, file.relative_to(_PACKAGE.parent))
    return path


class Submission:
    """A running spark-submit and its application; a context manager, which ends spark-submit.

    The application ends with the cluster.

    Args:
        directory: working directory of spark-submit.
        command: a command of the page; its ``job.py`` is replaced by `job`.
        job: the Python file and its arguments.
        python: ``PYSPARK_PYTHON``.
        settings: of Spark, beside those of the page.
    """

    def __init__(
        self,
        hadoop: HadoopCluster,
        directory: Path,
        command: str,
        job: list[str],
        python: str = "./environment/bin/python",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._hadoop = hadoop
        words = command.split()
        assert words[0] == "spark-submit" and words[-1] == "job.py", command
        spark_home = JARS.parent
        conf = [each for item in {**_SETTINGS, **(settings or {})}.items() for each in ("--conf", "=".join(item))]
        self.log_file = directory / f"submit-{len(list(directory.glob('submit-*')))}.log"
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TMPDIR")}
        environment |= {
            "HADOOP_CONF_DIR": str(hadoop.configuration),
            "SPARK_HOME": str(spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": python,
            "PWD": str(directory),
        }
        line = [str(spark_home / "bin" / "spark-submit"), *conf, *words[1:-1], *job]
        with self.log_file.open("w") as log:
            # `cd` in a shell of its own: the page says where to start the command
            shell = ["sh", "-c", 'cd "$0" && exec "$@"', str(directory), *line]
            self.process = start_process(shell, log, log, environment)

    def __enter__(self) -> Submission:
        return self

    def __exit__(self, *_: object) -> None:
        stop_process(self.process, 20)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def application(self) -> str:
        """Returns the id of the application, once YARN has accepted it."""
        return self._wait(lambda: _first(r"Submitted application (application_\w+)", self.log), "YARN accepts it")

    def wait_for_batch(self, number: int, attempt: int = 1) -> int:
        """Returns the process of the job, once this attempt has written the batch."""
        pattern = rf"batch {number} is written, driver (\d+)"

        def written() -> str:
            # in deploy mode client, the driver is spark-submit
            return _first(pattern, "".join([*self._output(f"container_*_{attempt:02}_000001/stdout"), self.log]))

        return int(self._wait(written, f"batch {number} of attempt {attempt}"))

    def wait(self) -> int:
        """Returns the exit status of spark-submit, after the application has ended."""
        wait_until(lambda: self.process.poll() is not None, "the application ends", _TIMEOUT_S, 0.5)
        return int(self.process.returncode)

    def wait_for_success(self) -> None:
        """Returns after the application has ended with status 0."""
        assert self.wait() == 0, self.log[-3_000:]

    def processes(self, role: str) -> list[int]:
        """Returns the JVMs of a role, ``ApplicationMaster`` or ``YarnCoarseGrainedExecutorBackend``."""
        application = self.application()
        found = []
        for pid, words in _commands().items():
            is_java = Path(words[0]).name == "java"
            if is_java and any(each.endswith(role) for each in words) and any(application in each for each in words):
                found.append(pid)
        return found

    def memory(self) -> dict[str, int]:
        """Returns the resident megabytes of each process of the driver's container, the JVM first."""
        (driver,) = self.processes("ApplicationMaster")
        parents = {pid: _parent(pid) for pid in _commands()}
        tree = [driver]
        for pid in tree:
            tree += [child for child, parent in parents.items() if parent == pid]
        return {f"{_role(pid)} {pid}": _resident_mb(pid) for pid in tree}

    def container_output(self) -> str:
        """Returns all files that YARN keeps of the application: output and launch commands of its containers."""
        directories = [*self._hadoop.containers.rglob(self.application())]
        scripts = [file for each in directories for file in each.rglob("*.sh")]
        return "".join([*self._output("*/*"), *(file.read_text(errors="replace") for file in scripts)])

    def _output(self, pattern: str) -> list[str]:
        directory = self._hadoop.container_logs / self.application()
        return [file.read_text(errors="replace") for file in sorted(directory.glob(pattern)) if file.is_file()]

    def _wait(self, condition, what: str) -> str:
        def check() -> str:
            found = condition()
            assert found or self.process.poll() is None, f"{what}: spark-submit ended: {self.log[-3_000:]}"
            return str(found or "")

        return wait_until(check, what, _TIMEOUT_S, 0.2)


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""


def _commands() -> dict[int, list[str]]:
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_text(errors="replace").split("\0")
        except OSError:
            # ended meanwhile
            continue
        if words[0]:
            found[int(path.name)] = words
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _role(pid: int) -> str:
    words = _commands().get(pid, ["ended"])
    modules = [each.rpartition(".")[2] for each in words if each.startswith("pyspark.") and "daemon" not in each]
    return (modules or [Path(words[0]).name])[0]


def _resident_mb(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGESIZE") >> 20

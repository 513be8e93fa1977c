"""Fixtures of the tests on YARN."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hadoop_cluster import HadoopCluster
from support.password_topics import password_topics
from support.yarn_submission import make_environment, page_command


@pytest.fixture(scope="session")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HadoopCluster]:
    """HDFS and YARN with one node."""
    with HadoopCluster(tmp_path_factory.mktemp("hadoop")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def submit_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the environment and its archive."""
    directory = tmp_path_factory.mktemp("submit")
    make_environment(directory / "environment")
    subprocess.run(["sh", "-ec", page_command("tar -czf")], cwd=directory, check=True, timeout=900)
    return directory


@pytest.fixture(scope="session")
def secured() -> Iterator[dict[str, str]]:
    """Options of the source for the topics of the tests, all but the password."""
    with password_topics(("executors", "masters", "clients", "zipped")) as options:
        yield options

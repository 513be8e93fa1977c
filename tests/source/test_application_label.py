"""The name of a Spark application in the command of its driver."""

from __future__ import annotations

import os

import pytest

from spark_groupsource.source.process.driver_process import application_label, label_of_command

SUBMIT = ["java", "-cp", "jars/*", "org.apache.spark.deploy.SparkSubmit"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([*SUBMIT, "--conf", "spark.app.name=daily orders (v2)", "pyspark-shell"], "daily-orders-v2"),
        ([*SUBMIT, "--name", "billing", "/jobs/land.py", "x.py"], "billing"),
        ([*SUBMIT, "/jobs/land.py"], "land"),
        ([*SUBMIT, "pyspark-shell"], ""),
        ([*SUBMIT, "--conf", f"spark.app.name={'x' * 100}"], "x" * 60),
        (["java", "-jar", "other.jar", "--name", "x"], ""),
    ],
)
def test_label_of_a_command(arguments: list[str], expected: str) -> None:
    assert label_of_command(arguments) == expected


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        (["/venv/bin/python", "-u", "/jobs/land.py", "other.py"], "land"),
        (["/venv/bin/python", "-m", "ipykernel_launcher", "-f", "kernel.json"], ""),
        (["python", "-m", "pytest", "test_it.py"], ""),
        (["python"], ""),
    ],
)
def test_label_of_the_command_that_started_the_driver(parent: list[str], expected: str) -> None:
    assert label_of_command([*SUBMIT, "pyspark-shell"], parent) == expected
    assert label_of_command([*SUBMIT, "--name", "billing", "pyspark-shell"], parent) == "billing"


def test_a_process_without_spark_has_no_label() -> None:
    assert application_label(os.getpid()) == application_label(2**22 + 1) == ""

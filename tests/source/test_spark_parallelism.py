"""Numbers of members and tasks that follow from Spark's settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_groupsource.source.process import spark_parallelism
from spark_groupsource.source.process.spark_parallelism import (
    MAX_UNKNOWN_TASKS,
    Parallelism,
    driver_parallelism,
    java_processors,
    parallelism_of,
    spark_settings,
)

SUBMIT = ["java", "-cp", "jars/*", "org.apache.spark.deploy.SparkSubmit"]
MASTER = "spark.master"
INSTANCES, CORES, MOST_CORES = "spark.executor.instances", "spark.executor.cores", "spark.cores.max"
DYNAMIC, MAXIMUM = "spark.dynamicAllocation.enabled", "spark.dynamicAllocation.maxExecutors"
GPUS, GPUS_OF_TASK = "spark.executor.resource.gpu.amount", "spark.task.resource.gpu.amount"
STANDALONE = "spark://127.0.0.1:7077"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, Parallelism(6, "spark.master=local[*]")),
        ({MASTER: "local"}, Parallelism(1, "spark.master=local")),
        ({MASTER: "local[4]"}, Parallelism(4, "spark.master=local[4]")),
        ({MASTER: "local[4, 3]"}, Parallelism(4, "spark.master=local[4, 3]")),
        ({MASTER: "local[*,3]", "spark.task.cpus": "2"}, Parallelism(3, "spark.master=local[*,3]")),
        ({MASTER: "local[4]", INSTANCES: "9"}, Parallelism(4, "spark.master=local[4]")),
        ({MASTER: "yarn", "spark.default.parallelism": "40"}, Parallelism(40, "spark.default.parallelism=40")),
        ({MASTER: "local-cluster[2,3,1024]"}, Parallelism(6, "spark.master=local-cluster[2,3,1024]")),
        ({MASTER: "local-cluster[2,3,1024]", CORES: "2"}, Parallelism(4, "spark.master=local-cluster[2,3,1024]")),
        ({MASTER: "local-cluster[2,3,1024]", MOST_CORES: "4"}, Parallelism(4, "spark.cores.max=4")),
        ({MASTER: "yarn", INSTANCES: "100", CORES: "4"}, Parallelism(400, f"{INSTANCES}=100, {CORES}=4")),
        ({MASTER: "yarn", INSTANCES: "100"}, Parallelism(100, f"{INSTANCES}=100")),
        (
            {MASTER: "k8s://https://h:443", INSTANCES: "3", CORES: "5", "spark.task.cpus": "2"},
            Parallelism(6, f"{INSTANCES}=3, {CORES}=5 (spark.task.cpus=2)"),
        ),
        (
            {MASTER: "yarn", DYNAMIC: "true", MAXIMUM: "20", INSTANCES: "2", CORES: "4"},
            Parallelism(80, f"{MAXIMUM}=20, {CORES}=4"),
        ),
        (
            {MASTER: "k8s://https://h:443", INSTANCES: "4", CORES: "16", GPUS: "2", GPUS_OF_TASK: "1"},
            Parallelism(8, f"{INSTANCES}=4, {GPUS}=2, {GPUS_OF_TASK}=1"),
        ),
        (
            {MASTER: "yarn", INSTANCES: "4", CORES: "16", GPUS: "2", GPUS_OF_TASK: "0.4"},
            Parallelism(16, f"{INSTANCES}=4, {GPUS}=2, {GPUS_OF_TASK}=0.4"),
        ),
        (
            {MASTER: "yarn", INSTANCES: "4", CORES: "16", GPUS: "1", GPUS_OF_TASK: "0.0625"},
            Parallelism(64, f"{INSTANCES}=4, {CORES}=16"),
        ),
        (
            {MASTER: STANDALONE, MOST_CORES: "32", CORES: "8", GPUS: "1", GPUS_OF_TASK: "1"},
            Parallelism(4, f"{MOST_CORES}=32, {GPUS}=1, {GPUS_OF_TASK}=1"),
        ),
        ({MASTER: STANDALONE, MOST_CORES: "12"}, Parallelism(12, f"{MOST_CORES}=12")),
        ({MASTER: STANDALONE, MOST_CORES: "11", CORES: "4"}, Parallelism(8, f"{MOST_CORES}=11, {CORES}=4")),
        (
            {MASTER: STANDALONE, MOST_CORES: "40", CORES: "4", DYNAMIC: "true", MAXIMUM: "5"},
            Parallelism(20, f"{MAXIMUM}=5, {CORES}=4"),
        ),
    ],
)
def test_tasks_of_the_settings(settings: dict[str, str], expected: Parallelism) -> None:
    assert parallelism_of(settings, lambda: 6) == expected


@pytest.mark.parametrize(
    "settings",
    [
        {MASTER: "yarn"},
        # the maximum of executors is infinite, or says nothing about the cluster
        {MASTER: "yarn", DYNAMIC: "true", INSTANCES: "2"},
        {MASTER: "yarn", DYNAMIC: "true", INSTANCES: "2", MAXIMUM: "10000"},
        {MASTER: "yarn", INSTANCES: "many"},
        {MASTER: STANDALONE},
        {MASTER: STANDALONE, DYNAMIC: "true", MAXIMUM: "5"},
    ],
)
def test_a_number_that_is_not_set_is_bounded(settings: dict[str, str]) -> None:
    tasks, reason = parallelism_of(settings, lambda: 6)
    assert tasks == MAX_UNKNOWN_TASKS
    assert reason.startswith(f"spark.master={settings[MASTER]} without a number of executors or cores, so ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([*SUBMIT, "--conf", "spark.master=local[4]", "--conf", "spark.x=a b", "pyspark-shell"], "local[4]"),
        ([*SUBMIT, "--master", "local[3]", "app.py"], "local[3]"),
        ([*SUBMIT, "--verbose", "--master=local[3]", "app.py", "--master", "of the application"], "local[3]"),
        ([*SUBMIT, "--master", "local[3]", "--conf", "spark.master=local[5]", "app.py"], "local[3]"),
        # PYSPARK_SUBMIT_ARGS and a master in the code
        ([*SUBMIT, "--master", "local[3]", "--conf", "spark.master=local[5]", "pyspark-shell"], "local[5]"),
        (["java", "-Dspark.master=local[7]", SUBMIT[-1], "app.py"], "local[7]"),
        ([*SUBMIT, "app.py"], None),
    ],
)
def test_master_in_a_command(arguments: list[str], expected: str | None) -> None:
    settings = spark_settings(arguments, {})
    assert settings is not None and settings.get(MASTER) == expected


def test_options_of_spark_submit_are_settings() -> None:
    words = ["--executor-cores", "4", "--num-executors", "50", "--total-executor-cores", "8", "app.py"]
    assert spark_settings([*SUBMIT, *words], {}) == {CORES: "4", INSTANCES: "50", MOST_CORES: "8"}


def test_variables_that_spark_submit_reads() -> None:
    """They have the lowest precedence; the application master of YARN does not read them."""
    variables = {"MASTER": "local[5]", "SPARK_EXECUTOR_CORES": "3"}
    assert spark_settings([*SUBMIT, "pyspark-shell"], variables) == {MASTER: "local[5]", CORES: "3"}
    words = ["--master", "yarn", "--conf", "spark.executor.cores=2", "app.py"]
    assert spark_settings([*SUBMIT, *words], variables) == {MASTER: "yarn", CORES: "2"}
    assert spark_settings(["java", "org.apache.spark.deploy.yarn.ApplicationMaster"], variables) == {}


@pytest.mark.parametrize(
    ("words", "variables", "expected"),
    [
        ([], {}, None),
        (["-XX:ActiveProcessorCount=4"], {}, 4),
        (["-XX:ActiveProcessorCount=4", "-Xmx1g", "-XX:ActiveProcessorCount=3"], {}, 3),
        ([], {"JAVA_TOOL_OPTIONS": "-Xss1m -XX:ActiveProcessorCount=2"}, 2),
        ([], {"JAVA_TOOL_OPTIONS": "-XX:ActiveProcessorCount=2", "JDK_JAVA_OPTIONS": "-XX:ActiveProcessorCount=5"}, 5),
        (["-XX:ActiveProcessorCount=4"], {"JDK_JAVA_OPTIONS": "-XX:ActiveProcessorCount=5"}, 4),
        (["-XX:ActiveProcessorCount=4"], {"_JAVA_OPTIONS": "-XX:ActiveProcessorCount=6"}, 6),
        # the default of Java
        (["-XX:ActiveProcessorCount=-1"], {}, None),
    ],
)
def test_processors_in_the_options_of_java(
    words: list[str], variables: dict[str, str], expected: int | None
) -> None:
    application = [SUBMIT[-1], "app.py", "-XX:ActiveProcessorCount=9"]
    assert java_processors(["java", *words, *application], variables) == expected


def test_files_of_a_driver_in_a_cluster(tmp_path: Path) -> None:
    """A driver on YARN or Kubernetes has its settings in a properties file, and no others unless they are requested."""
    file = tmp_path / "spark.properties"
    file.write_text("spark.master=yarn\nspark.executor.instances=50 \n")
    (tmp_path / "spark-defaults.conf").write_text("# defaults\nspark.executor.cores   4\nspark.executor.instances 2\n")
    environment = {"SPARK_CONF_DIR": str(tmp_path)}
    master = ["java", "org.apache.spark.deploy.yarn.ApplicationMaster", "--class", "o.a.s.deploy.PythonRunner"]
    words = ["--primary-py-file", "app.py", "--arg", "--conf", "--properties-file", str(file)]
    assert spark_settings([*master, *words], environment) == {MASTER: "yarn", INSTANCES: "50"}
    words = ["--load-spark-defaults", "--properties-file", str(file), "--conf", "spark.master=k8s://h", "local:///app.py"]
    assert spark_settings([*SUBMIT, *words], environment) == {MASTER: "k8s://h", INSTANCES: "50", CORES: "4"}
    assert spark_settings([*SUBMIT, "app.py"], {"SPARK_HOME": str(tmp_path)}) == {}
    (tmp_path / "conf").mkdir()
    (tmp_path / "spark-defaults.conf").rename(tmp_path / "conf" / "spark-defaults.conf")
    assert spark_settings([*SUBMIT, "app.py"], {"SPARK_HOME": str(tmp_path)}) == {CORES: "4", INSTANCES: "2"}
    with pytest.raises(FileNotFoundError):
        spark_settings([*SUBMIT, "--properties-file", str(tmp_path / "missing"), "app.py"], {})


def test_a_driver_without_spark_submit_has_no_known_parallelism() -> None:
    assert spark_settings(["java", "-jar", "other.jar"], {}) is None
    tasks, reason = driver_parallelism(os.getpid())
    assert tasks == MAX_UNKNOWN_TASKS and reason.startswith("the command of the Spark driver shows no settings")


@pytest.mark.parametrize("application", ["pyspark-shell", "app.py"])
@pytest.mark.parametrize(
    ("master", "running", "expected"),
    [
        ("yarn", {MASTER: "yarn"}, Parallelism(2, f"{INSTANCES}=2")),
        ("k8s://h", {MASTER: "k8s://h", CORES: "4"}, Parallelism(8, f"{INSTANCES}=2, {CORES}=4")),
        # the code of the program has set a number
        ("yarn", {MASTER: "yarn", INSTANCES: "5"}, Parallelism(5, f"{INSTANCES}=5")),
        # tasks of other masters, and of a number of executors that changes, remain unknown
        ("yarn", {MASTER: "yarn", DYNAMIC: "true"}, parallelism_of({MASTER: "yarn", DYNAMIC: "true"}, lambda: 6)),
        ("yarn", {MASTER: "other"}, parallelism_of({MASTER: "other"}, lambda: 6)),
    ],
)
def test_a_running_application_without_a_number_has_the_executors_that_spark_starts_by_default(
    application: str, master: str, running: dict[str, str], expected: Parallelism, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_parallelism, "driver_command", lambda pid: [*SUBMIT, "--master", master, application])
    monkeypatch.setattr(spark_parallelism, "running_settings", lambda driver, settings: running)
    assert driver_parallelism(7) == expected
    # the web interface is not found
    monkeypatch.setattr(spark_parallelism, "running_settings", lambda driver, settings: None)
    assert driver_parallelism(7).tasks == MAX_UNKNOWN_TASKS


@pytest.mark.parametrize(
    "words",
    [
        ["--master", "local[3]"],
        ["--master", "yarn", "--num-executors", "3"],
        ["--master", "yarn", "--conf", "spark.default.parallelism=3"],
    ],
)
def test_a_program_that_has_passed_its_settings_is_not_asked_for_them(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request takes a driver about a second."""
    monkeypatch.setattr(spark_parallelism, "driver_command", lambda pid: [*SUBMIT, *words, "pyspark-shell"])
    monkeypatch.setattr(spark_parallelism, "running_settings", lambda driver, settings: pytest.fail("a request"))
    assert driver_parallelism(7).tasks == 3

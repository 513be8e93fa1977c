"""Number of tasks that Spark runs in parallel, from the driver's command.

Spark passes none of its settings to the planner of a batch read or to the reader process of a stream. Both descend from
the driver JVM, whose command shows them: what a Python process sets before it starts a JVM is ``--conf``, a driver in a
cluster (YARN, Kubernetes) has ``--properties-file``, and a server of Spark Connect is submitted as an application. What
an application sets after spark-submit has started it is known to its web interface alone.
Source: SparkSubmitArguments and ApplicationMasterArguments, java(1).
"""

from __future__ import annotations

import os
import re
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Callable, Collection, Mapping, NamedTuple, Sequence

from spark_groupsource.common.processors import processor_count
from spark_groupsource.common.properties_text import decode, parse_properties
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.process.driver_process import driver_command
from spark_groupsource.source.process.spark_ui import running_settings

MAX_UNKNOWN_TASKS = 64
"""Number of tasks that are assumed to run in parallel if the command of the driver does not show it."""
# the default of Dataproc for the maximum of executors is 10,000, which says nothing about the cluster
_MAX_DYNAMIC_TASKS = 1_000
# a group is one record of __consumer_offsets, by default of 1 MB at most; a member may store each name three times: in
# its subscription, in its assignment and in what it owns
_MAX_SUBSCRIPTION_BYTES = 262_144
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_MAIN_CLASSES = (_SUBMIT, "org.apache.spark.deploy.yarn.ApplicationMaster")
_CLUSTERS = ("yarn", "k8s://")
# of YARN and Kubernetes; SchedulerBackendUtils.DEFAULT_NUMBER_EXECUTORS
_DEFAULTS = {"spark.executor.instances": "2"}
_VARIABLES = {"MASTER": "spark.master", "SPARK_EXECUTOR_CORES": "spark.executor.cores"}
# a Python process that starts the driver itself
_SHELL = "pyspark-shell"
_SWITCHES = ("--verbose", "--supervise", "--load-spark-defaults")
_OPTIONS = {
    "--master": "spark.master",
    "--executor-cores": "spark.executor.cores",
    "--num-executors": "spark.executor.instances",
    "--total-executor-cores": "spark.cores.max",
}
_ACTIVE_PROCESSORS = re.compile(r"-XX:ActiveProcessorCount=([1-9]\d*)")
_TASK_RESOURCE = re.compile(r"spark\.task\.resource\.([^.]+)\.amount")
_LOCAL = re.compile(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


class Parallelism(NamedTuple):
    """Number of tasks that run in parallel, at least 1, and the settings that decide it."""

    tasks: int
    reason: str


def driver_parallelism(driver: int) -> Parallelism:
    """Returns the number of tasks that the application of a driver process runs in parallel.

    It is `MAX_UNKNOWN_TASKS` if neither the web interface nor the command of the driver shows it.
    """
    arguments = driver_command(driver)
    try:
        settings = spark_settings(arguments, os.environ)
    except (OSError, ValueError, ConfigurationError) as error:
        return _unknown(f"the settings of Spark cannot be read ({str(error).rstrip('.')})")
    if settings is None:
        return _unknown("the command of the Spark driver shows no settings")
    # a Python process that starts the driver passes everything; that a number is missing is known of its context alone
    if _SHELL not in arguments or _uses_default_executors(settings):
        running = running_settings(driver, settings)
        if running is not None:
            settings = {**running, **(_DEFAULTS if _uses_default_executors(running) else {})}
    return parallelism_of(settings, lambda: java_processors(arguments, os.environ) or processor_count())


def _uses_default_executors(settings: Mapping[str, str]) -> bool:
    """Returns whether Spark starts its default number of executors with these settings, which decides the tasks."""
    is_cluster = settings.get("spark.master", "").startswith(_CLUSTERS)
    is_set = "spark.executor.instances" in settings or _number(settings, "spark.default.parallelism") is not None
    return is_cluster and not is_set and not _is_dynamic(settings)


def java_processors(arguments: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """Returns the processors that the options of a driver's JVM set for ``local[*]``; None if they set none."""
    main = next((index for index, word in enumerate(arguments) if word in _MAIN_CLASSES), len(arguments))
    before = (environment.get(name, "").split() for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"))
    # the last one has effect
    words = [*chain.from_iterable(before), *arguments[:main], *environment.get("_JAVA_OPTIONS", "").split()]
    found = [match[1] for match in map(_ACTIVE_PROCESSORS.fullmatch, words) if match is not None]
    return int(found[-1]) if found else None


def with_storable_subscriptions(limit: Parallelism, partitions: Collection[TopicPartition]) -> Parallelism:
    """Returns the number of members that a group can store that subscribes to these partitions, at most `limit`."""
    topics = {partition.topic for partition in partitions}
    # each with its length in two bytes
    size = sum(2 + len(topic) for topic in topics)
    most = max(_MAX_SUBSCRIPTION_BYTES // max(size, 1), 1)
    if min(limit.tasks, len(partitions)) <= most:
        return limit
    names = f"the group stores the names of {len(topics):,} topics for each member, {size:,} bytes"
    return Parallelism(most, f"{limit.reason}; {names}")


def spark_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the settings in the command of a driver and in its files; None if it was not started by spark-submit.

    What a program sets in its own code, after spark-submit has started it, is not among them.

    Raises: OSError, ValueError, ConfigurationError for a file that cannot be read.
    """
    main = next((index for index, word in enumerate(arguments) if word in _MAIN_CLASSES), None)
    if main is None:
        return None
    given: dict[str, str] = {}
    options: dict[str, str] = {}
    file = None
    has_defaults = True
    words = iter(arguments[main + 1 :])
    for word in words:
        if not word.startswith("--"):
            # the application; its own arguments follow
            break
        if word in _SWITCHES:
            continue
        name, separator, value = word.partition("=")
        value = value if separator else next(words, "")
        if name == "--conf":
            key, _, given[key] = value.partition("=")
        elif name == "--properties-file":
            file, has_defaults = value, "--load-spark-defaults" in arguments[main:]
        elif name in _OPTIONS:
            options[_OPTIONS[name]] = value
    is_submitted = arguments[main] == _SUBMIT
    settings = {key: environment[name] for name, key in _VARIABLES.items() if is_submitted and environment.get(name)}
    properties = (word[2:].partition("=") for word in arguments[:main] if word.startswith("-Dspark.") and "=" in word)
    settings.update((name, value) for name, _, value in properties)
    if has_defaults:
        settings.update(_read(_defaults_file(environment), is_required=False))
    if file is not None:
        settings.update(_read(Path(file)))
    # a Python process passes the settings of its code as --conf, and they take precedence in its SparkContext
    later = (options, given) if _SHELL in arguments[main:] else (given, options)
    return {**settings, **later[0], **later[1]}


def _defaults_file(environment: Mapping[str, str]) -> Path:
    directory = environment.get("SPARK_CONF_DIR")
    return Path(directory or os.path.join(environment.get("SPARK_HOME", ""), "conf")) / "spark-defaults.conf"


def _read(path: Path, is_required: bool = True) -> dict[str, str]:
    if not is_required and not path.is_file():
        return {}
    return {name: value.strip() for name, value in parse_properties(decode(path.read_bytes())).items()}


def parallelism_of(settings: Mapping[str, str], processors: Callable[[], int]) -> Parallelism:
    """Returns the number of tasks that Spark with these settings runs in parallel.

    Args:
        processors: returns the number of processors of the driver, for ``local[*]``.
    """
    task_cpus = max(_number(settings, "spark.task.cpus") or 1, 1)
    default = _number(settings, "spark.default.parallelism")
    if default:
        return Parallelism(default, f"spark.default.parallelism={default}")
    master = settings.get("spark.master", "local[*]")
    local = _LOCAL.fullmatch(master)
    if local is not None:
        cores = processors() if local[1] == "*" else int(local[1] or 1)
        return Parallelism(max(cores // task_cpus, 1), f"spark.master={master}")
    return _cluster_parallelism(settings, master, task_cpus)


def _cluster_parallelism(settings: Mapping[str, str], master: str, task_cpus: int) -> Parallelism:
    """Returns the tasks of all executors; the number of executors is not a guess.

    Spark starts two without a number, but settings that are not those of a running application may lack the number.
    """
    names = ["spark.executor.cores"]
    cores = _number(settings, "spark.executor.cores")
    is_standalone = master.startswith(("spark://", "local-cluster"))
    if cores is None and not is_standalone:
        # the default of YARN and Kubernetes
        cores, names = 1, []
    slots, names = _tasks_of_executor(settings, cores or 0, task_cpus, names)
    limits = []
    if _is_dynamic(settings):
        maximum = _number(settings, "spark.dynamicAllocation.maxExecutors")
        if maximum is not None and cores is not None and maximum * cores <= _MAX_DYNAMIC_TASKS * task_cpus:
            limits.append((maximum * slots, ["spark.dynamicAllocation.maxExecutors", *names]))
    elif not is_standalone:
        instances = _number(settings, "spark.executor.instances")
        if instances is not None and cores is not None:
            limits.append((instances * slots, ["spark.executor.instances", *names]))
    most_cores = _number(settings, "spark.cores.max")
    if is_standalone and most_cores is not None:
        if cores is None:
            limits.append((most_cores // task_cpus, ["spark.cores.max"]))
        else:
            limits.append((most_cores // cores * slots, ["spark.cores.max", *names]))
    local_cluster = _LOCAL_CLUSTER.fullmatch(master)
    if local_cluster is not None:
        workers, worker_cores = int(local_cluster[1]), int(local_cluster[2])
        each = min(cores or worker_cores, worker_cores)
        limits.append((workers * (worker_cores // each) * (each // task_cpus), ["spark.master"]))
    if not limits:
        return _unknown(f"spark.master={master} without a number of executors or cores")
    tasks, decisive = min(limits)
    reason = ", ".join(f"{name}={settings[name]}" for name in decisive)
    return Parallelism(max(tasks, 1), f"{reason} (spark.task.cpus={task_cpus})" if task_cpus > 1 else reason)


def _tasks_of_executor(
    settings: Mapping[str, str], cores: int, task_cpus: int, names: list[str]
) -> tuple[int, list[str]]:
    """Returns how many tasks an executor runs in parallel, and the settings that decide it.

    Args:
        names: settings of the cores.
    Source: ResourceProfile.calculateTasksAndLimitingResource.
    """
    found = [(cores // task_cpus, names)]
    for name in settings:
        resource = _TASK_RESOURCE.fullmatch(name)
        if resource is not None:
            given = f"spark.executor.resource.{resource[1]}.amount"
            amount, needed = _number(settings, given), _amount(settings[name])
            if amount is not None and needed is not None:
                # a part of a unit is one of the same unit
                tasks = amount * int(1 / needed) if needed < 1 else int(amount / needed)
                found.append((tasks, [given, name]))
    return min(found, key=lambda each: each[0])


def _is_dynamic(settings: Mapping[str, str]) -> bool:
    return settings.get("spark.dynamicAllocation.enabled", "false").strip().lower() == "true"


def _amount(text: str) -> Fraction | None:
    """Returns a positive amount of a resource; None for anything else, which Spark rejects."""
    try:
        amount = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        return None
    return amount if amount > 0 else None


def _number(settings: Mapping[str, str], name: str) -> int | None:
    """Returns a positive number, None for anything else: Spark rejects it, or it is not a limit."""
    text = settings.get(name, "").strip()
    return int(text) if text.isdecimal() and int(text) else None


def _unknown(cause: str) -> Parallelism:
    return Parallelism(
        MAX_UNKNOWN_TASKS, f"{cause}, so one for each partition, at most {MAX_UNKNOWN_TASKS}; option members sets it"
    )

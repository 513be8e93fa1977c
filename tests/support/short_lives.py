"""What lets the many processes of a test run start cheaply: JVMs, and Pythons of Spark, that live for seconds.

Nothing of it changes what the processes do. What is set in the environment already stands.
"""

from __future__ import annotations

import os
from pathlib import Path

# the optimising compiler and collector threads cost more than they gain in a JVM that lives for seconds
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# read by Spark's launcher and its scripts; the last one by Kafka's scripts and by `RealKafka`
_VARIABLES = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS")
_SITE = str(Path(__file__).with_name("site"))


def arrange() -> None:
    """Sets it up for every process started from now on."""
    for variable in _VARIABLES:
        os.environ.setdefault(variable, JAVA)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if _SITE not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, _SITE])

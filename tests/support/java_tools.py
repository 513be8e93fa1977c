"""Kafka's command line tools, run in one shared JVM.

The JVM is called through py4j, which PySpark includes.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kafka_jars import java, kafka_jars
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError, get_return_value
from real_kafka import ToolRun

logging.getLogger("py4j").setLevel(logging.ERROR)

_EXIT = "tool exited with status "
_STATUS = re.compile(_EXIT + r"(\d+)")
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS = "org.apache.kafka.tools.ConfigCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def spark_jars() -> Path:
    """Returns the directory of the jars in PySpark's archive."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).with_name("jars")


@contextmanager
def java_gateway(jars: Path) -> Iterator[JavaGateway]:
    """Starts a JVM with the jars of a directory on its class path."""
    (py4j_jar,) = spark_jars().glob("py4j-*.jar")
    port, process = launch_gateway(
        classpath=f"{jars}/*",
        jarpath=str(py4j_jar),
        javaopts=["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"],
        java_path=java(),
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield gateway
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait(20)


@contextmanager
def plain_java_errors() -> Iterator[None]:
    """Makes failed calls raise Py4JJavaError.

    In a process with a Spark session, PySpark converts every py4j exception with calls to Spark's JVM.
    """
    with patch("py4j.java_gateway.get_return_value", get_return_value):
        yield


class JavaTools:
    """Runs ``main`` of Kafka's tools in sequence. A context manager."""

    def __enter__(self) -> JavaTools:
        with ExitStack() as stack:
            self._gateway = stack.enter_context(java_gateway(kafka_jars()))
            self._forbid_exit()
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def _forbid_exit(self) -> None:
        """Makes a tool that exits raise an exception instead, with the hook that Kafka's own tests use.

        Its text is `_EXIT` and the status: the handles below put together what Java would write as
        ``(status, ignored) -> { throw new RuntimeException(_EXIT.concat(String.valueOf(status))); }``.
        """
        jvm = self._gateway.jvm
        handles, method_type = jvm.java.lang.invoke.MethodHandles, jvm.java.lang.invoke.MethodType.methodType
        lookup, named = handles.publicLookup(), jvm.java.lang.Class.forName
        text, failure = named("java.lang.String"), named("java.lang.RuntimeException")
        number, none = jvm.java.lang.Integer.TYPE, jvm.java.lang.Void.TYPE
        steps = [
            lookup.findStatic(text, "valueOf", method_type(text, number)),
            lookup.findVirtual(text, "concat", method_type(text, text)).bindTo(_EXIT),
            lookup.findConstructor(failure, method_type(none, text)),
            handles.throwException(none, failure),
        ]
        fail = steps[0]
        for step in steps[1:]:
            fail = handles.filterReturnValue(fail, step)
        ignored = self._gateway.new_array(jvm.java.lang.Class, 1)
        ignored[0] = text
        fail = handles.dropArguments(fail, 1, ignored)
        procedure = named("org.apache.kafka.common.utils.internals.Exit$Procedure")
        ended = jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(procedure, fail)
        jvm.org.apache.kafka.common.utils.internals.Exit.setExitProcedure(ended)

    def call(self, main_class: str, *arguments: str) -> ToolRun:
        """Returns the output and the exit status of the tool, as of a separate process."""
        jvm = self._gateway.jvm
        out, errors = jvm.java.io.ByteArrayOutputStream(), jvm.java.io.ByteArrayOutputStream()
        before = jvm.java.lang.System.out, jvm.java.lang.System.err
        values = self._gateway.new_array(jvm.java.lang.String, len(arguments))
        for at, argument in enumerate(arguments):
            values[at] = argument
        tool: Any = jvm
        for part in main_class.split("."):
            tool = getattr(tool, part)
        jvm.java.lang.System.setOut(jvm.java.io.PrintStream(out, True))
        jvm.java.lang.System.setErr(jvm.java.io.PrintStream(errors, True))
        thrown = ""
        try:
            with plain_java_errors():
                tool.main(values)
        except Py4JJavaError as error:
            thrown = str(error.java_exception.toString())
            if _EXIT not in thrown:
                raise
        finally:
            jvm.java.lang.System.setOut(before[0])
            jvm.java.lang.System.setErr(before[1])
        printed = str(out.toString()), str(errors.toString())
        # a tool that catches every exception prints the one of the exit hook
        status = next((int(hit[1]) for text in (thrown, *printed) if (hit := _STATUS.search(text))), 0)
        return ToolRun(arguments, status, *(text.partition(_EXIT)[0] for text in printed))

    def run(self, main_class: str, *arguments: str) -> str:
        """Returns the output of the tool followed by its errors, without trailing white space."""
        done = self.call(main_class, *arguments)
        printed = done.stdout + done.stderr
        return "\n".join(line.rstrip() for line in printed.splitlines() if line.strip())

    def rows(self, main_class: str, *arguments: str) -> list[list[str]]:
        """Returns the words of each line of output."""
        return [line.split() for line in self.run(main_class, *arguments).splitlines()]

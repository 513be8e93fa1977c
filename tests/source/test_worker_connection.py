"""The connection of a Python worker to Spark's JVM over TCP."""

import os
import socket
import subprocess
import sys

import pytest

# a process with one connection, as a worker has; it unpickles a reader
WORKER = """
import os, socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
later = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
if sys.argv[2]:
    os.environ["PYTHON_WORKER_FACTORY_SECRET"] = sys.argv[2]
from spark_groupsource.source.spark.stream_reader import GroupStreamReader
reader = GroupStreamReader.__new__(GroupStreamReader)
reader.__setstate__({"_process": None, "_driver": 7})
# private: the driver that the process would stop with
assert reader._driver == 7
for each in (connection, later):
    print(*(each.getsockopt(socket.IPPROTO_TCP, option) for option in (socket.TCP_QUICKACK, socket.TCP_NODELAY)))
"""

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux only")


@pytest.mark.parametrize("secret, expected", [("secret", "1 1"), ("", "0 0")])
def test_unpickling_a_reader_acknowledges_the_first_part_of_a_task(secret, expected):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", WORKER, str(listener.getsockname()[1]), secret]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHON_WORKER_FACTORY_SECRET"}
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=True)
    first, later = run.stdout.splitlines()
    assert first == expected
    assert later.endswith(" 0")

"""A reader whose driver was killed while it waited for a broker."""

import subprocess
import sys

from support.waiting import wait_until

from spark_groupsource.net import Address, listen

# waits to join a group at a broker that takes connections and says nothing
READER = """
import sys
from spark_groupsource.source.stream import _Live
from spark_groupsource.source.options import parse_options

options = {"kafka.bootstrap.servers": sys.argv[1], "kafka.group.id": "g", "subscribe": "t"}
live = _Live(parse_options(options, "stream"), int(sys.argv[2]), 1)
print("waiting", flush=True)
try:
    while True:
        try:
            live.session()
        except Exception as error:
            print(error)
finally:
    live.stop()
"""


def test_reader_of_a_killed_driver_ends_while_it_waits_for_a_broker():
    with listen(Address("127.0.0.1", 0)) as silent:
        driver = subprocess.Popen(["sleep", "600"])
        command = [sys.executable, "-c", READER, f"127.0.0.1:{silent.getsockname()[1]}", str(driver.pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
            try:
                assert reader.stdout.readline() == "waiting\n"
                driver.kill()
                driver.wait()
                wait_until(lambda: reader.poll() is not None, "the reader ends", 30)
                assert "the Spark driver is gone" in reader.stderr.read()
                assert reader.returncode == 0
            finally:
                driver.kill()
                driver.wait()
                reader.kill()

"""Addresses embedded and embedded:DIR: start, sharing and exit of the broker."""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.process import embedded_address as embedded
from spark_groupsource.source.process.control_socket import control_sockets, is_first_reader
from spark_groupsource.source.process.driver_process import driver_pid, private_directory, process_identity
from spark_groupsource.source.process.embedded_address import resolve_bootstrap
from spark_groupsource.source.process.file_locks import lock_exclusive
from spark_groupsource.source.process.reader_process import can_use_unix_socket, has_unix_socket


@pytest.fixture
def application():
    """A process in place of a driver JVM; the broker exits with it."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def broker_pid(run_dir):
    return int((run_dir / "address").read_text().split()[0])


def kill_application(process, *run_dirs):
    """Kills an application and waits for the exit of its brokers."""
    pids = [broker_pid(run_dir) for run_dir in run_dirs]
    process.kill()
    process.wait()
    wait_until(lambda: not any(is_running(pid) for pid in pids), "the brokers exit with their application")


def is_running(pid):
    # private: a child of this process stays a zombie until it is waited for
    started = {broker.pid: broker for broker in embedded._started}
    return started[pid].poll() is None if pid in started else bool(process_identity(pid))


def test_other_addresses_are_not_changed():
    assert resolve_bootstrap("localhost:9092,other:9092", 1) == "localhost:9092,other:9092"


@pytest.mark.slow
def test_one_broker_per_application(application, topic):
    address = resolve_bootstrap("embedded", application.pid)
    assert resolve_bootstrap("Embedded", application.pid) == address
    create_topic(address, topic)
    assert produce(address, topic, [(0, None, b"v")]) == 1
    kill_application(application, embedded.run_directory("", application.pid))


@pytest.mark.slow
def test_directory_is_shared_and_keeps_its_data(application, topic, tmp_path):
    address_option = f"embedded:{tmp_path / 'data'}"
    # the file of a broker that was killed; its process id is that of a running process
    (embedded.run_directory(str(tmp_path / "data"), 0) / "address").write_text(f"{os.getpid()} 127.0.0.1:1")
    address = resolve_bootstrap(address_option, application.pid)
    assert resolve_bootstrap(address_option, os.getpid()) == address  # another application, the same directory
    create_topic(address, topic)
    run_dir = embedded.run_directory(str(tmp_path / "data"), 0)
    pid = broker_pid(run_dir)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not is_running(pid), "the broker exits")
    again = resolve_bootstrap(address_option, application.pid)
    assert produce(again, topic, [(0, None, b"v")]) == 1
    pid = broker_pid(run_dir)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not is_running(pid), "the broker exits")


@pytest.mark.slow
def test_broker_starts_when_the_previous_one_of_its_directory_has_stopped(application, tmp_path):
    run_dir = embedded.run_directory(str(tmp_path / "data"), 0)
    with ThreadPoolExecutor(1) as pool:
        with lock_exclusive(run_dir / "broker"):  # of a broker that writes its data
            started = pool.submit(resolve_bootstrap, f"embedded:{tmp_path / 'data'}", application.pid)
            log = run_dir / "log"
            wait_until(lambda: log.exists() and "Waiting for the previous" in log.read_text(), "the broker waits")
            assert not (run_dir / "address").exists()
            line = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING \[broker=embedded\] Waiting"
            assert re.match(line, log.read_text())
        assert started.result().startswith("127.0.0.1:")
    kill_application(application, run_dir)


@pytest.mark.slow
def test_broker_that_gets_sigterm_leaves_the_directory_of_a_running_application(application):
    resolve_bootstrap("embedded", application.pid)
    run_dir = embedded.run_directory("", application.pid)
    pid = broker_pid(run_dir)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not is_running(pid), "the broker exits")
    assert list((run_dir / "users").iterdir())
    assert resolve_bootstrap("embedded", application.pid) == resolve_bootstrap("embedded", application.pid)
    kill_application(application, run_dir)
    assert not run_dir.exists()


@pytest.mark.slow
def test_error_contains_the_output_of_a_broker_that_does_not_start(application, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    with pytest.raises(ConfigurationError, match="kafka.bootstrap.servers: the embedded broker did not start: .*file"):
        resolve_bootstrap(f"embedded:{blocked}", application.pid)


def test_directory_accessible_to_other_users_is_rejected():
    path = private_directory(f"test-{os.getpid()}")
    try:
        assert private_directory(f"test-{os.getpid()}") == path
        path.chmod(0o777)
        with pytest.raises(ConfigurationError, match="accessible to other users"):
            private_directory(f"test-{os.getpid()}")
    finally:
        path.rmdir()


def test_unix_domain_sockets_are_recognized():
    assert not has_unix_socket({}) and not has_unix_socket({"PYTHON_UNIX_DOMAIN_ENABLED": "False"})
    assert has_unix_socket({"PYTHON_UNIX_DOMAIN_ENABLED": "True"})
    assert has_unix_socket({"PYTHON_WORKER_FACTORY_SOCK_PATH": "/tmp/s"})


def test_spark_without_unix_domain_sockets_is_recognized(monkeypatch):
    # Spark 4.0
    monkeypatch.setattr("pyspark.util.local_connect_and_auth", lambda port, auth_secret: None)
    assert not can_use_unix_socket()
    monkeypatch.setattr("pyspark.util.local_connect_and_auth", lambda conn_info, auth_secret: None)
    assert can_use_unix_socket()


def test_the_first_reader_of_an_application_logs_for_all(application):
    assert is_first_reader(application.pid, "unix_socket")
    assert not is_first_reader(application.pid, "unix_socket")
    assert is_first_reader(application.pid, "another")
    assert control_sockets(application.pid) == []


def test_driver_is_the_parent_without_a_jvm():
    assert process_identity(driver_pid())


@pytest.mark.spark
def test_embedded_address_works_through_spark(spark, group, topic, tmp_path):
    options = {"kafka.bootstrap.servers": "embedded", "subscribe": topic, "startingOffsets": "earliest"}
    missing = f"topic {topic} does not exist at embedded. Create it .groupsource topics create --bootstrap-server 127"
    with pytest.raises(Exception, match=missing):
        spark.read.format("groupsource").options(**options).load().count()
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    address = (embedded.run_directory("", jvm) / "address").read_text().split()[1]
    create_topic(address, topic, 2)
    produce(address, topic, [(n % 2, None, b"v") for n in range(10)])
    assert spark.read.format("groupsource").options(**options).load().count() == 10
    # a stream creates its topics, as Kafka's consumers do
    options |= {"kafka.group.id": group, "subscribe": f"{topic},{topic}-new"}
    stream = spark.readStream.format("groupsource").options(**options).load()
    writer = stream.writeStream.format("memory").queryName("embedded").trigger(availableNow=True)
    assert writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination(120)
    assert spark.table("embedded").count() == 10
    assert produce(address, f"{topic}-new", [(0, None, b"v")]) == 1

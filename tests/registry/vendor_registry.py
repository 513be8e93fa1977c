"""Reads values of confluent-kafka's serializers with a vendor's schema registry.

    PYTHONPATH=jobs:tests python tests/registry/vendor_registry.py --registry URL --bootstrap-servers HOST:PORT
    PYTHONPATH=jobs:tests python tests/registry/vendor_registry.py --karapace PYTHON --source DIRECTORY

The second form starts the embedded broker and, on it, Karapace from a checkout of its repository; PYTHON is one with
Karapace's dependencies. Karapace joins a group of protocol type `sr` to elect its primary, creates the compacted topic
`_schemas` and waits for its own records in it. Its Protobuf support needs a compiled library (`protopacelib`); Avro and
JSON need only that it can be loaded.

Exits with status 1 if a check fails. A registry without UUIDs of schemas fails check_headers, unless --without-guids.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from child_processes import start_process, stop_process
from support.registry_checks import CHECKS, RegistryChecks
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker


@contextmanager
def karapace(python: str, source: Path, bootstrap_servers: str) -> Iterator[str]:
    """Yields the address of a Karapace that has elected itself."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    settings = {
        "BOOTSTRAP_URI": bootstrap_servers, "HOST": "127.0.0.1", "PORT": str(port), "KARAPACE_REGISTRY": "true",
        "ADVERTISED_HOSTNAME": "127.0.0.1", "LOG_LEVEL": "WARNING", "LOG_HANDLER": "stdout",
    }  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), **{f"KARAPACE_{k}": v for k, v in settings.items()}}
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        try:
            with urlopen(f"{url}/subjects", timeout=2) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False

    with tempfile.TemporaryFile("w+") as log:
        process = start_process([python, "-m", "karapace"], log, subprocess.STDOUT, environment)
        try:
            wait_until(is_ready, "Karapace is ready", 120)
            yield url
        except AssertionError:
            log.seek(0)
            print(log.read()[-4_000:], file=sys.stderr)
            raise
        finally:
            stop_process(process, 10)


def run_checks(bootstrap_servers: str, registry: str, skipped: set[str]) -> int:
    """Prints the result of each check; returns the number of failed ones."""
    failed = 0
    checks = RegistryChecks(bootstrap_servers, registry)
    for name in (each for each in CHECKS if each not in skipped):
        try:
            getattr(checks, name)()
            print(f"ok   {name}", flush=True)
        except Exception as error:  # every kind of failure is a result
            failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {str(error)[:500]}", flush=True)
    checks.close()
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Check a vendor's schema registry.")
    parser.add_argument("--registry", help="address of a running registry")
    parser.add_argument("--bootstrap-servers", help="address of a broker; without it, the embedded broker is started")
    parser.add_argument("--karapace", metavar="PYTHON", help="start Karapace with this Python")
    parser.add_argument("--source", type=Path, help="checkout of Karapace")
    parser.add_argument("--without-guids", action="store_true", help="skip ids in record headers")
    options = parser.parse_args()
    if (options.registry is None) == (options.karapace is None or options.source is None):
        parser.error("give either --registry, or --karapace and --source")
    skipped = {"check_headers"} if options.without_guids else set()
    if options.bootstrap_servers is not None and options.registry is not None:
        return 1 if run_checks(options.bootstrap_servers, options.registry, skipped) else 0
    with EmbeddedBroker() as broker:
        if options.registry is not None:
            return 1 if run_checks(broker.bootstrap_servers, options.registry, skipped) else 0
        with karapace(options.karapace, options.source, broker.bootstrap_servers) as url:
            return 1 if run_checks(broker.bootstrap_servers, url, skipped) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Broker in the foreground of a process, tuned for it.

It serves until SIGTERM or SIGINT.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Callable, Collection, Mapping

from spark_groupsource.broker.config import broker_config
from spark_groupsource.broker.network import event_loop
from spark_groupsource.broker.report_writer import ReportWriter, WriteLines, log_report
from spark_groupsource.broker.server import BrokerServer
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.descriptors import raise_descriptor_limit
from spark_groupsource.common.net import Address

_GC_THRESHOLDS = (5_000, 1, 100_000)
_THREAD_SWITCH_S = 0.0005
_TRIM_INTERVAL_S = 5.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MMAP_THRESHOLD_BYTES, _TRIM_THRESHOLD_BYTES = 2_097_152, 8_388_608


def _tune_process() -> Callable[[], object]:
    """Sets the limits of the process for one event loop; returns the function that trims the heap."""
    # each client needs a file descriptor
    raise_descriptor_limit()
    trim_heap = _bound_allocator()
    # the event loop waits that long for the worker thread, after each system call
    sys.setswitchinterval(_THREAD_SWITCH_S)
    # groups and offsets are long-lived and form no cycles; by default each full collection would traverse all of them
    gc.freeze()
    # a collection blocks all requests, so those of the middle generation must be short; a full one takes 170 ms when
    # groups and producers fill their bounds. It is rare, because closed connections leave no cycles either
    gc.set_threshold(*_GC_THRESHOLDS)
    return trim_heap


def _bound_allocator() -> Callable[[], object]:
    """Lets the C library return freed memory to the system: without effect where it is not glibc.

    By default glibc raises its threshold for own mappings to 32 MB after the first large buffer that is freed, and then
    keeps buffers in its heaps, of which each thread has one.

    Returns: a function that returns the free pages within the heap, which takes milliseconds.
    """
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
        library.mallopt(_M_ARENA_MAX, 1)
        return partial(library.malloc_trim, 0)
    except (OSError, AttributeError):
        return lambda: None


async def _repeat(function: Callable[[], object], interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        function()


def _printed(addresses: Mapping[str, tuple[Address, ...]]) -> str:
    """Returns ``host:port`` of the nodes; with their protocols if there are several."""
    prefixed = len(addresses) > 1
    return ",".join(
        f"{protocol}://{each}" if prefixed else str(each) for protocol, nodes in addresses.items() for each in nodes
    )


def serve_forever(
    data_dir: Path,
    address: Address,
    config: Mapping[str, str],
    *,
    ready: Callable[[str], None],
    report: WriteLines | None = None,
    brokers: int = 1,
    add_scram: Collection[str] = (),
    log_requests: WriteLines | None = None,
) -> None:
    """Runs a broker in this thread until SIGTERM or SIGINT, then stops it cleanly.

    Args: `config`, settings by Kafka's names; `ready`, called with ``host:port`` when clients can connect; `report`,
    called in a separate thread with log lines and their levels, by default the logger; `brokers`, number of nodes, at
    consecutive ports; `add_scram`, users in the format of ``--add-scram``; `log_requests`, as `report` for the
    lines of the request log, by default none.

    Raises: ConfigurationError, StorageError: the broker cannot start.
    """
    parsed = broker_config(config)
    trim_heap = _tune_process()

    async def run(write_line: ReportWriter, write_request: ReportWriter | None) -> None:
        server = BrokerServer(
            Path(data_dir),
            address,
            parsed,
            SystemClock(),
            write_line,
            brokers,
            add_scram,
            write_request=write_request,
        )
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        addresses = await server.start()
        gc.collect()
        gc.freeze()  # collections do not traverse modules, topics and partitions
        ready(_printed(addresses))
        if server.warning:
            write_line(server.warning)
        trimming = asyncio.create_task(_repeat(trim_heap, _TRIM_INTERVAL_S))
        try:
            await stopped.wait()
        finally:
            trimming.cancel()
            await server.stop()

    write_line = ReportWriter(report or log_report)
    write_request = None if log_requests is None else ReportWriter(log_requests)
    try:
        event_loop.run(run(write_line, write_request))
    finally:
        write_line.close()
        if write_request is not None:
            write_request.close()

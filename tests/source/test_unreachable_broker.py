"""The log of a stream while its broker cannot be reached."""

import re

import pytest
from support.source_process import SourceProcess
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.common.net import parse_addresses


@pytest.mark.slow
def test_outage_is_one_warning_and_one_line_when_the_broker_is_back(topic, group, tmp_path):
    with EmbeddedBroker(tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        create_topic(servers, topic)
        produce(servers, topic, [(0, None, b"v")])
        source = SourceProcess(tmp_path, servers, topic, group)
        try:
            end = source.latest_offset()
            source.call({}, end)
            source.result()
            source.call(end)
            source.result()
            broker.stop()
            source.call(end)
            wait_until(lambda: "unreachable" in source.log, "the warning", 5)
            again = EmbeddedBroker(tmp_path / "data", port=parse_addresses(servers)[0].port)
            with again:
                assert source.result() == end
                wait_until(lambda: "reachable again" in source.log, "the line about its end")
                source.stop()
        finally:
            source.kill()
    levels = re.findall(r"(WARNING|INFO|ERROR) .*Broker is (unreachable|reachable)", source.log)
    assert levels == [("WARNING", "unreachable"), ("INFO", "reachable")]
    assert source.log.count("WARNING") == 1, source.log

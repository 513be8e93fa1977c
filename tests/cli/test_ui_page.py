"""The page of ``groupsource ui`` in a headless browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from support.browser import Browser, BrowserPage
from support.clients import group_client, open_cluster, settle
from support.commits import commit_as
from support.topics import produce

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.cli.ui_command import UiServer
from spark_groupsource.cli.ui_views import ClusterViews
from spark_groupsource.common.net import Address

pytestmark = pytest.mark.slow
# a script in a name is text
GROUP = "delays <img src=x onerror=alert(1)>"
WIDTH = "document.documentElement.scrollWidth"
TEXT = "document.querySelector('main').innerText"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"flights": 2}) as found:
        produce(found.bootstrap_servers, "flights", ((n % 2, None, b"x") for n in range(2_000)))
        yield found


@pytest.fixture
def address(broker: EmbeddedBroker) -> Iterator[str]:
    with open_cluster(broker.bootstrap_servers) as client:
        server = UiServer(Address("127.0.0.1", 0), ClusterViews(client, broker.bootstrap_servers), allow_reset=True)
        server.start()
        try:
            yield f"http://{server.address}/"
        finally:
            server.close()


def click(page: BrowserPage, text: str) -> None:
    """Clicks the link or button with a text."""
    found = f"[...document.querySelectorAll('a, button')].find(each => each.textContent === {text!r})"
    page.wait_for(found)
    page.evaluate(f"{found}.click()")


def shows(page: BrowserPage, *texts: str) -> None:
    for text in texts:
        page.wait_for(f"{TEXT}.includes({text!r})")


def test_the_page_shows_a_rebalance_and_resets_an_empty_group(
    browser: Browser, broker: EmbeddedBroker, address: str
) -> None:
    with open_cluster(broker.bootstrap_servers) as client, group_client(client, GROUP, "flights") as member:
        settle(member, 2)
        page = browser.open(address)
        click(page, GROUP)
        shows(page, GROUP, "Stable", "Why did it rebalance", "app-0 (/127.0.0.1) joined", "flights-1")
        assert page.evaluate("document.querySelectorAll('.picture svg rect').length") > 4
        assert page.evaluate("document.querySelector('img')") is None
        # no group with members is reset
        assert page.evaluate("[...document.querySelectorAll('section')].at(-1).hidden") is True
    # while the page is open
    shows(page, "Empty", "app-0 (/127.0.0.1) left")
    commit_as(broker.bootstrap_servers, GROUP, [TopicPartition("flights", 0, 900), TopicPartition("flights", 1, 1_000)])
    shows(page, "900")
    click(page, "Show the plan")
    shows(page, "Nothing is committed yet: this is the plan.")
    click(page, "Commit these offsets")
    shows(page, "The new offsets are committed.", "2,000")
    page.resize(390)
    assert page.evaluate(WIDTH) == 390
    for tab in ("Topics", "Queries", "Groups"):
        click(page, tab)
        page.wait_for("document.querySelector('main table')")
        assert page.evaluate(WIDTH) == 390
    assert browser.errors == []


def test_the_page_shows_that_the_cluster_is_lost(browser: Browser, broker: EmbeddedBroker, address: str) -> None:
    page = browser.open(address)
    shows(page, "Groups")
    page.wait_for("document.getElementById('status').textContent.startsWith('live')")
    click(page, "Topics")
    shows(page, "flights")
    broker.stop()
    page.wait_for("document.getElementById('problem').textContent.includes('since')")
    # what was read last stays
    shows(page, "flights")
    assert page.evaluate("document.getElementById('status').textContent") == "not updated"

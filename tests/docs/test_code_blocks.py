"""The code blocks of the pages run as they are printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import TopicPartition
from support.clusters import Cluster
from support.commits import commit_as
from support.read_back import read_back
from support.topics import create_topic, produce

import spark_groupsource as gs
from spark_groupsource.broker.embedded import EmbeddedBroker

ROOT = Path(__file__).resolve().parents[2]
# an HTML comment before a block says why it does not run; the bash block of README.md has a test of its own
BLOCK = re.compile(r"(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)
# tests/docs/test_manifests.py reads those of YAML
NOT_CODE = ("bash", "mermaid", "text", "yaml")
ADDRESS = "localhost:9092"
# topics that the jobs of docs/writing.md write
WRITTEN = {"enriched": 2, "totals": 1, "late": 1, "punctual": 1}


class Block(NamedTuple):
    """One code block of a page."""

    page: str
    line: int
    language: str
    code: str
    reason: str


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    return [
        Block(page, text[: m.start("code")].count("\n") + 1, m["language"], m["code"], m["reason"] or "")
        for m in BLOCK.finditer(text)
    ]


PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
BLOCKS = [block for page in PAGES for block in blocks_of(page) if block.language not in NOT_CODE]


def pages_with(language: str) -> list[str]:
    return sorted({block.page for block in BLOCKS if block.language == language and not block.reason})


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """The topics and groups that the pages name."""
    with EmbeddedBroker(topics={"flights": 4, "flights-copy": 4, "alerts": 1, **WRITTEN}) as running:
        running.produce("flights", [{"carrier": "UA", "delay": number} for number in range(1_000)])
        for group in ("delays", "billing"):
            commit_as(running.bootstrap_servers, group, [TopicPartition("flights", 0, 200)])
        yield running


def test_every_block_has_a_language_that_is_run() -> None:
    unknown = [f"{b.page}:{b.line}: {b.language!r}" for b in BLOCKS if b.language not in ("python", "sh")]
    assert unknown == []


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_blocks_run(page: str, broker: EmbeddedBroker, spark, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"spark": spark, "__name__": "__main__"}
    try:
        for block in blocks_of(page):
            if block.language == "python" and not block.reason:
                # not of the working directory: that of the JVM is another one
                code = block.code.replace(ADDRESS, broker.bootstrap_servers).replace('"/data/', f'"{tmp_path}/')
                code = "\n" * block.line + code
                exec(compile(code, str(ROOT / page), "exec"), names)
        for query in spark.streams.active:
            query.processAllAvailable()
    finally:
        for query in spark.streams.active:
            query.stop()
    if page == "docs/record-formats.md":
        # of the same group on other pages
        rows = gs.connect(broker).group("delays").lag()
        (row,) = (row for row in rows if (row["topic"], row["partition"]) == ("flights", 0))
        assert names["committed"] == row["current_offset"] > 0, "out of the bytes"


@pytest.mark.slow
def test_the_jobs_of_the_page_writing_write_each_record_once(
    spark: Any, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    names = {name: f"{topic}-{name}" for name in ("flights", "flights-copy", "alerts", *WRITTEN)}
    for name in names.values():
        create_topic(cluster.bootstrap_servers, name, 2)
    flights = [{"carrier": carrier, "delay": delay} for carrier in ("UA", "XX") for delay in range(0, 100, 10)]
    values = [(number % 2, b"%d" % number, json.dumps(flight).encode()) for number, flight in enumerate(flights)]
    produce(cluster.bootstrap_servers, names["flights"], values)

    def run_page() -> None:
        for block in blocks_of("docs/writing.md"):
            code = block.code.replace(ADDRESS, cluster.bootstrap_servers).replace('"/data/', f'"{tmp_path}/')
            for name, own in names.items():
                code = code.replace(f'"{name}"', f'"{own}"').replace(f"'{name}'", f"'{own}'")
            if block.language == "python":
                exec(compile(code, "writing.md", "exec"), {"spark": spark})

    def read(name: str) -> list[tuple[bytes | None, bytes | None]]:
        found = read_back(cluster.bootstrap_servers, names[name], 2)
        return [(key, value) for records in found.values() for key, value, _ in records]

    run_page()
    # as a driver that was killed after the transactions of the last batches
    for commit in tmp_path.glob("checkpoints/*/commits/*"):
        commit.unlink()
    run_page()
    carriers = {"UA": {"name": "United"}}
    enriched = Counter((b"%d" % n, json.dumps(f | carriers.get(f["carrier"], {}))) for n, f in enumerate(flights))
    assert Counter((key, json.dumps(json.loads(value or b""))) for key, value in read("enriched")) == enriched
    late = {(b"%d" % n) for n, flight in enumerate(flights) if int(flight["delay"]) > 60}
    assert sorted(key or b"" for key, _ in read("late")) == sorted(late)
    assert len(read("punctual")) == len(flights) - len(late)
    assert Counter(read("totals")) == {(b"0", b"10"): 1, (b"1", b"10"): 1}
    # at least once: each run of the first job copies everything
    assert len({value for _, value in read("flights-copy")}) == 2 * len(flights)


def test_the_options_of_jobs_that_do_not_run_exist() -> None:
    """Click parses the command lines of the jobs, and reports an option that does not exist or lacks."""
    parsed = []
    for block in BLOCKS:
        if block.reason and block.language == "sh":
            for line in block.code.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                name = next((word for word in words if word.startswith("jobs/")), "")
                if name:
                    command = import_module(Path(name).stem).main
                    command.make_context(name, words[words.index(name) + 1 :])
                    parsed.append(name)
    assert {"jobs/land_parquet.py", "jobs/windowed_aggregates.py", "jobs/upsert_database.py"} <= set(parsed)
    assert "jobs/replay_range.py" in parsed


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("sh"))
def test_shell_blocks_run(page: str, broker: EmbeddedBroker, tmp_path: Path) -> None:
    script = "\n".join(b.code for b in blocks_of(page) if b.language == "sh" and not b.reason)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GROUPSOURCE_BOOTSTRAP_SERVER": broker.bootstrap_servers,
    }
    run = subprocess.run(
        ["sh", "-ex"], input=script.replace(ADDRESS, broker.bootstrap_servers), cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2_000:]

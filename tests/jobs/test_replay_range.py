"""The job replay_range: slices, progress, arguments. `test_spark_jobs.py` runs it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import replay_range
from click import ClickException
from click.testing import CliRunner

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def test_slices_cover_the_range_without_overlap() -> None:
    found = list(replay_range.slices(START, START + timedelta(minutes=150), timedelta(hours=1)))
    assert found[0].start == START.timestamp() * 1000
    assert [part.end - part.start for part in found] == [3_600_000, 3_600_000, 1_800_000]
    assert [part.end for part in found[:-1]] == [part.start for part in found[1:]]
    assert [part.name for part in found] == [f"20260101T0{hour}0000.000Z" for hour in range(3)]


def test_progress_is_kept_in_the_file(tmp_path: Path) -> None:
    first, second = replay_range.slices(START, START + timedelta(hours=2), timedelta(hours=1))
    replay_range.Progress(tmp_path / "new", {"topic": "t"}).add(first)
    progress = replay_range.Progress(tmp_path / "new", {"topic": "t"})
    assert progress.is_done(first) and not progress.is_done(second)
    with pytest.raises(ClickException, match="is of another replay"):
        replay_range.Progress(tmp_path / "new", {"topic": "u"})


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"--until": "2025-01-01"}, "--from must be before --until"),
        ({"--from": "yesterday"}, "is not a time in ISO 8601"),
        ({"--to-topic": "u"}, "Give one of --output and --to-topic"),
        ({"--output": None, "--to-topic": "t"}, "must not be a topic that is read"),
    ],
)
def test_invalid_arguments_are_reported_before_spark_starts(
    tmp_path: Path, changed: dict[str, str | None], message: str
) -> None:
    given: dict[str, str | None] = {"--bootstrap-servers": "h:1", "--topic": "t", "--from": "2026-01-01"}
    given |= {"--until": "2026-01-02T00:00Z", "--output": "o", "--checkpoint": str(tmp_path / "c"), **changed}
    words = [word for name, value in given.items() if value is not None for word in (name, value)]
    result = CliRunner().invoke(replay_range.main, words)
    assert result.exit_code == 2 and message in " ".join(result.stderr.split())


@pytest.mark.parametrize("signals, attempts", [([15], 2), ([], 1)])
def test_slice_that_fails_after_a_signal_is_written_again(signals: list[int], attempts: int) -> None:
    made = []

    def write() -> None:
        made.append(1)
        if len(made) == 1:
            raise OSError("Cannot run program.")

    part = replay_range.Slice(0, 1)
    if signals:
        replay_range.write_slice(write, part, signals)
    else:
        with pytest.raises(OSError):
            replay_range.write_slice(write, part, signals)
    assert len(made) == attempts

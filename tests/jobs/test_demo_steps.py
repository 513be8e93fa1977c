"""What the demo recommends at its end."""

from __future__ import annotations

from pathlib import Path

import demo
import pytest
from click.testing import CliRunner

from spark_groupsource.cli.main import main

ROOT = Path(demo.__file__).parents[1]


@pytest.mark.parametrize("servers, is_kafka", [(None, False), (None, True), ("h:1", False)])
def test_the_demo_ends_with_the_notebook_and_two_commands(servers: str | None, is_kafka: bool) -> None:
    notebook, *commands = [step for step, _ in demo.next_steps(servers, is_kafka, "flight-delays-1")]
    assert (ROOT / notebook).is_file() and notebook.endswith(".ipynb")
    assert len(commands) == 2
    for command in commands:
        program, *words = command.split()
        if program == "make":
            assert "\nrun:" in (ROOT / "Makefile").read_text() and words[0] == "run"
        else:
            # an unknown command or option is an error, --help ends a known one before it runs
            result = CliRunner().invoke(main, [*words, "--help"])
            assert result.exit_code == 0, result.output

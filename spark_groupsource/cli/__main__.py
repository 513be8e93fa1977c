"""Entry point of the ``groupsource`` command, also without the package click."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the command with the arguments of this process; returns the exit status where click does not exit."""
    try:
        from spark_groupsource.cli.main import main as command
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        print(
            "Error: the groupsource command cannot start: click is not installed in this Python environment. "
            "Run: pip install 'spark-groupsource[cli]'.",
            file=sys.stderr,
        )
        return 1
    command(prog_name="groupsource")
    return 0


if __name__ == "__main__":
    sys.exit(main())

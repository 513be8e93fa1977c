"""Entry point of the ``groupsource`` command, also without the package click."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

from spark_groupsource.cli.streams import flush_output, open_standard_streams


def main() -> int:
    """Runs the command with the arguments of this process; returns the exit status."""
    open_standard_streams()
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
    try:
        try:
            command(prog_name="groupsource")
        except SystemExit:
            flush_output()
            raise
    except OSError as error:
        # what could not be written is not tried again at the exit of Python
        with suppress(OSError):
            flush_output()
        # an address or a file that a command opens has an error of its own
        if error.errno != errno.EPIPE:
            reason = os.strerror(error.errno) if error.errno else str(error)
            name = f" {os.fsdecode(error.filename)}" if isinstance(error.filename, (str, bytes)) else ""
            print(
                f"Error: Reading or writing{name or ' a standard stream'} failed: {reason}. Check the files and the "
                "redirections of the command.",
                file=sys.stderr,
            )
    return 1


if __name__ == "__main__":
    sys.exit(main())

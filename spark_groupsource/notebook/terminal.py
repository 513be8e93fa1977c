"""Live view of a group in a terminal or pipe."""

from __future__ import annotations

import shutil
import sys
import threading
from importlib.util import find_spec
from itertools import count
from typing import Any, Callable, Iterable, TextIO

from spark_groupsource.notebook.live_view import COLUMNS, View, fitted, lines_below, sparkline, text


def watch_terminal(
    read: Callable[[], View], interval_s: float, output: TextIO | None = None, rounds: int | None = None
) -> None:
    """Redraws a table until Ctrl-C, with rich if it is installed; without a terminal, prints one line per change.

    Args:
        rounds: number of reads; None for no limit.
    """
    output = output or sys.stdout
    draw = _print_changes
    if output.isatty():
        draw = _redraw if find_spec("rich") is None else _redraw_with_rich
    try:
        draw(_views(read, interval_s, rounds), output)
    except KeyboardInterrupt:
        return


def _views(read: Callable[[], View], interval_s: float, rounds: int | None) -> Iterable[View]:
    pause = threading.Event()
    for number in count() if rounds is None else range(rounds):
        if number:
            pause.wait(interval_s)
        yield read()


def _print_changes(views: Iterable[View], output: TextIO) -> None:
    previous = None
    for view in views:
        # one line per outage: the text of its error after the condition may differ with each read
        shown = view._replace(problem="").condition, view.read_at or view.problem.partition(" since ")[0]
        if shown != previous:
            output.write(f"{view.at}  {view.group}: {view.condition}\n")
            output.flush()
        previous = shown


def _redraw(views: Iterable[View], output: TextIO) -> None:
    for view in views:
        size = shutil.get_terminal_size()
        output.write("\x1b[H\x1b[2J" + text(fitted(view, size.columns, size.lines)) + "\n")
        output.flush()


def _redraw_with_rich(views: Iterable[View], output: TextIO) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=output, highlight=False)
    with Live(console=console, auto_refresh=False) as live:
        for view in views:
            live.update(_rich(fitted(view, console.width, console.height), console.width), refresh=True)


def _rich(view: View, width: int) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("topic", "member") else "right", no_wrap=True)
    for row in view.rows:
        table.add_row(*map(Text, row))
    head = Text(f"{view.group}  ", style="bold").append(view.summary, style="red" if view.problem else "not bold")
    parts: list[Any] = [head, Text(sparkline(view.lags[-width:]), style="blue"), table, *map(Text, lines_below(view))]
    return Group(*parts)

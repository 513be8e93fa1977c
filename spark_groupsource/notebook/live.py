"""`watch`: live view of a group in a notebook or a terminal."""

from __future__ import annotations

import sys
import threading
from collections import deque
from contextlib import ExitStack
from datetime import datetime
from html import escape
from importlib.util import find_spec
from typing import Any, Callable, Iterable, NamedTuple, Sequence, TextIO

from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.client import Cluster as ClusterClient
from spark_groupsource.errors import ConfigurationError, GroupSourceError
from spark_groupsource.log_text import escaped, shortened
from spark_groupsource.monitor.cluster_reads import group_lag
from spark_groupsource.monitor.group_watch import GroupWatch
from spark_groupsource.monitor.lag import LagRow
from spark_groupsource.notebook.cluster import Cluster, Group
from spark_groupsource.notebook.group_reads import query_group

_SHOWN_PARTITIONS, _SHOWN_REBALANCES, _LAG_POINTS = 20, 5, 120
_MAX_LINES = 16
_COLUMNS = ("topic", "partition", "current offset", "log end offset", "lag", "member")


class View(NamedTuple):
    """What the live view shows.

    Attributes:
        rows: cells of the partitions with the largest lag.
        omitted: number of further partitions.
        lags: sums of the lag, the last one now.
        rebalances: the last ones in words.
    """

    group: str
    state: str
    members: int
    at: str
    lags: Sequence[int]
    rows: Sequence[tuple[str, ...]]
    omitted: int
    rebalances: Sequence[str]
    problem: str = ""

    @property
    def summary(self) -> str:
        """One line: state, members, lag."""
        lag = f", lag {self.lags[-1]:,}" if self.lags else ""
        text = f"{self.state}, {self.members} member{'' if self.members == 1 else 's'}{lag}, {self.at}"
        return f"{text}. {self.problem}" if self.problem else text


def watch(source: Any, *, interval_s: float = 1.0, cluster: Cluster | None = None) -> Watch | None:
    """Shows the lag, the members and the rebalances of a group while they change.

    In a notebook it returns a view that updates itself until `Watch.stop` or until the kernel ends; in a terminal it
    redraws a table until Ctrl-C and returns None.

    Args:
        source: a streaming query that reads with groupsource, or a group (``connect(...).group(...)``).
        interval_s: time between two reads, in seconds.
        cluster: result of ``connect``, for a query whose brokers require security settings.
    Raises: ConfigurationError for another kind of source, and for a query that has not read yet; BrokerError,
        NetworkError at the first read.
    """
    if interval_s <= 0:
        raise ConfigurationError(f"Argument interval_s must be positive, got {interval_s}.")
    with ExitStack() as stack:
        group = source if isinstance(source, Group) else stack.enter_context(query_group(source, cluster))
        reader = GroupReader(group)
        stack.callback(reader.close)
        if not _is_notebook():
            watch_terminal(reader.read, interval_s)
            return None
        return Watch(reader.read, interval_s, stack.pop_all().close)


class GroupReader:
    """Reads the view of a group; an error after the first read is part of the view."""

    def __init__(self, group: Group) -> None:
        # its own connections: the view is read by a thread
        settings = group._cluster._client.settings
        self._client = ClusterClient(settings.bootstrap, settings)
        self._name = group.name
        self._rebalances: list[str] = []
        self._follower = GroupWatch(self._client, group.name)
        self._lags: deque[int] = deque(maxlen=_LAG_POINTS)
        self._last: View | None = None

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def read(self) -> View:
        """Returns the view now."""
        at = f"{datetime.now():%H:%M:%S}"
        try:
            description = describe_groups(self._client, [self._name])[self._name]
            rows = group_lag(self._client, [description])[self._name]
            update = self._follower.update()
        except GroupSourceError as error:
            if self._last is None:
                raise
            return self._last._replace(at=at, problem=shortened(escaped(str(error)), 200))
        if update.completed:
            explained = repr(update.history.explain(_SHOWN_REBALANCES)).splitlines()
            self._rebalances = [escaped(line) for line in explained[:_MAX_LINES]]
        shown = ([escaped(update.progress)] if update.progress else []) + self._rebalances
        self._lags.append(sum(row.lag or 0 for row in rows))
        largest = sorted(rows, key=lambda row: (-(row.lag or 0), row.topic_partition))[:_SHOWN_PARTITIONS]
        self._last = View(
            escaped(shortened(self._name, 60)), description.state, len(description.members), at, tuple(self._lags),
            [_cells(row) for row in largest], len(rows) - len(largest), shown,
        )  # fmt: skip
        return self._last


def _cells(row: LagRow) -> tuple[str, ...]:
    member = row.member
    committed = None if row.committed is None else row.committed.offset
    numbers = ("-" if number is None else f"{number:,}" for number in (committed, row.log_end_offset, row.lag))
    name = "-" if member is None else escaped(shortened(member.group_instance_id or member.client_id, 40))
    return (escaped(row.topic_partition.topic), str(row.topic_partition.partition), *numbers, name)


# --- terminal ---


def watch_terminal(
    read: Callable[[], View], interval_s: float, output: TextIO | None = None, rounds: int | None = None
) -> None:
    """Redraws a table until Ctrl-C, with rich if it is installed; without a terminal, prints one line per change."""
    output = output or sys.stdout
    stop = threading.Event()
    try:
        if output.isatty() and find_spec("rich") is not None:
            _rich(read, interval_s, stop, rounds)
            return
        previous = ""
        for number in _rounds(rounds):
            view = read()
            if output.isatty():
                output.write("\x1b[H\x1b[2J" + text(view) + "\n")
            else:
                line = view.summary.rpartition(", ")[0]
                if line != previous:
                    output.write(f"{view.at}  {view.group}: {line}\n")
                previous = line
            output.flush()
            if number + 1 != rounds:
                stop.wait(interval_s)
    except KeyboardInterrupt:
        return


def _rounds(rounds: int | None) -> Iterable[int]:
    number = 0
    while rounds is None or number < rounds:
        yield number
        number += 1


def _rich(read: Callable[[], View], interval_s: float, stop: threading.Event, rounds: int | None) -> None:
    from rich.console import Group as Stack
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    def drawn(view: View) -> Stack:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in _COLUMNS:
            table.add_column(name, justify="left" if name in ("topic", "member") else "right")
        for row in view.rows:
            table.add_row(*map(Text, row))
        head = Text(f"{view.group}  ", style="bold").append(view.summary, style="red" if view.problem else "not bold")
        parts: list[Any] = [head, Text(sparkline(view.lags), style="blue"), table]
        parts += [Text(line) for line in _below(view)]
        return Stack(*parts)

    with Live(drawn(read()), auto_refresh=False, screen=False) as live:
        for number in _rounds(rounds):
            live.update(drawn(read()), refresh=True)
            if number + 1 != rounds:
                stop.wait(interval_s)


def text(view: View) -> str:
    """Returns the view as text."""
    lines = [_COLUMNS, *view.rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(_COLUMNS))]
    rows = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths)).rstrip() for line in lines]
    return "\n".join([f"{view.group}  {view.summary}", sparkline(view.lags), *rows, *_below(view)])


def _below(view: View) -> list[str]:
    more = [f"and {view.omitted:,} more partitions"] if view.omitted else []
    return [*more, *(["", *view.rebalances] if view.rebalances else [])]


def sparkline(values: Sequence[int]) -> str:
    """Returns the course of the lag in block characters."""
    highest = max(values, default=0)
    return "".join("▁▂▃▄▅▆▇█"[value * 7 // highest if highest else 0] for value in values)


# --- notebook ---

_STYLE = """
.gs-watch{font:13px/1.5 system-ui,sans-serif}.gs-watch table{border-collapse:collapse;margin:6px 0}
.gs-watch td,.gs-watch th{padding:2px 10px;text-align:right;border-bottom:1px solid rgba(128,128,128,.25)}
.gs-watch td:first-child,.gs-watch th:first-child,.gs-watch td:last-child,.gs-watch th:last-child{text-align:left}
.gs-watch svg{display:block}.gs-watch pre{margin:4px 0;font-size:12px;white-space:pre-wrap}
"""
_SCRIPT = """
export default { render({ model, el }) {
  const draw = () => { el.innerHTML = model.get("body"); };
  model.on("change:body", draw);
  draw();
} };
"""


def html(view: View) -> str:
    """Returns the view as HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in _COLUMNS)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in view.rows)
    rest = escape("\n".join(_below(view)))
    return (
        f'<style>{_STYLE}</style><div class="gs-watch"><b>{escape(view.group)}</b> {escape(view.summary)}'
        f"{_lag_line(view.lags)}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><pre>{rest}</pre></div>"
    )


def _lag_line(lags: Sequence[int]) -> str:
    if len(lags) < 2:
        return ""
    highest = max(max(lags), 1)
    step = 480 / (_LAG_POINTS - 1)
    points = " ".join(f"{at * step:.1f},{40 - 36 * lag / highest:.1f}" for at, lag in enumerate(lags))
    return (
        f'<svg width="600" height="44" role="img" aria-label="lag"><polyline points="{points}" fill="none" '
        f'stroke="#3b8fd0" stroke-width="1.5"/><text x="490" y="12" font-size="11" fill="currentColor">{highest:,}'
        "</text></svg>"
    )


class Watch:
    """A live view in a notebook; `stop` ends its updates.

    With anywidget (extra `notebook`) it works in Jupyter, VS Code, Colab and marimo, without a network. Else it is HTML
    that the kernel replaces.
    """

    def __init__(self, read: Callable[[], View], interval_s: float, close: Callable[[], None]) -> None:
        self._read = read
        self._interval_s = interval_s
        self._close = close
        self.view = read()
        self._widget = _widget(html(self.view)) if find_spec("anywidget") is not None else None
        self._handle: Any = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="groupsource watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the updates; the last view stays."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self._interval_s):
                self.view = self._read()
                body = html(self.view)
                if self._widget is not None:
                    self._widget.body = body
                elif self._handle is not None:
                    self._handle.update(_Html(body))
        finally:
            self._close()

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self._widget is not None:
            display(self._widget)
        else:
            self._handle = display(_Html(html(self.view)), display_id=True)

    def _repr_html_(self) -> str:
        return html(self.view)

    def __repr__(self) -> str:
        return text(self.view)


class _Html:
    def __init__(self, body: str) -> None:
        self._body = body

    def _repr_html_(self) -> str:
        return self._body


def _widget(body: str) -> Any:
    import anywidget
    import traitlets

    class LiveView(anywidget.AnyWidget):  # type: ignore[misc]
        _esm = _SCRIPT
        body = traitlets.Unicode("").tag(sync=True)

    return LiveView(body=body)


def _is_notebook() -> bool:
    """True in a kernel (Jupyter, VS Code, Colab) and in marimo, false in a terminal, IPython's included."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    marimo = sys.modules.get("marimo")
    return hasattr(shell, "kernel") or (marimo is not None and bool(marimo.running_in_notebook()))

"""`watch`: live view of a group in a notebook or a terminal."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from html import escape
from importlib.util import find_spec
from typing import Any, Callable, Sequence

from spark_groupsource.common.arguments import check_seconds
from spark_groupsource.notebook.cluster import Cluster, Group
from spark_groupsource.notebook.group_reads import query_group
from spark_groupsource.notebook.live_view import COLUMNS, LAG_POINTS, GroupReader, View, lines_below, text
from spark_groupsource.notebook.terminal import watch_terminal


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
    check_seconds("interval_s", interval_s)
    with ExitStack() as stack:
        group = source if isinstance(source, Group) else stack.enter_context(query_group(source, cluster))
        reader = GroupReader(group._cluster._client.settings, group.name)
        stack.callback(reader.close)
        if not _is_notebook():
            watch_terminal(reader.read, interval_s)
            return None
        return Watch(reader.read, interval_s, stack.pop_all().close)


_STYLE = """
.gs-watch{font:13px/1.5 system-ui,sans-serif}
.gs-watch table{border-collapse:collapse;margin:6px 0;font:inherit;color:inherit}
.gs-watch td,.gs-watch th{padding:2px 10px;text-align:right;border-bottom:1px solid rgba(128,128,128,.25)}
.gs-watch td:first-child,.gs-watch th:first-child,.gs-watch td:last-child,.gs-watch th:last-child{text-align:left}
.gs-watch svg{display:block}.gs-watch pre{margin:4px 0;font-size:12px;white-space:pre-wrap;word-break:normal}
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
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in view.rows)
    rest = escape("\n".join(lines_below(view)))
    return (
        f'<style>{_STYLE}</style><div class="gs-watch"><b>{escape(view.group)}</b> {escape(view.summary)}'
        f"{_lag_line(view.lags)}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><pre>{rest}</pre></div>"
    )


def _lag_line(lags: Sequence[int]) -> str:
    if len(lags) < 2:
        return ""
    highest = max(max(lags), 1)
    step = 480 / (LAG_POINTS - 1)
    points = " ".join(f"{at * step:.1f},{40 - 36 * lag / highest:.1f}" for at, lag in enumerate(lags))
    return (
        f'<svg width="600" height="44" role="img" aria-label="lag"><polyline points="{points}" fill="none" '
        f'stroke="#3b8fd0" stroke-width="1.5"/><text x="{step * (len(lags) - 1) + 8:.1f}" y="12" font-size="11" '
        f'fill="currentColor">highest lag {highest:,}</text></svg>'
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

    def _display_(self) -> Any:
        """Returns what marimo displays in place of the view."""
        return _Html(html(self.view)) if self._widget is None else self._widget

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
    """Returns True in a kernel (Jupyter, VS Code, Colab) and in marimo, false in a terminal, IPython's included."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    marimo = sys.modules.get("marimo")
    return hasattr(shell, "kernel") or (marimo is not None and bool(marimo.running_in_notebook()))

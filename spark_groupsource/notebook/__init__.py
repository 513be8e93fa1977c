"""Charts and live views of groups, for notebooks and terminals.

It shows what `monitor` and `source` know, and knows only how: names of methods, colors, frames of a view. It holds
connections but no data; each call reads the cluster again.

* `cluster.py` is the Python interface, `spark_groupsource.connect(...)`. Each method names a table or a function of
  `monitor` and returns its result: rows that are printed, a pandas frame or an Arrow table.
* `timeline_chart.py` is `timeline(...)`, the chart of the rebalances of a group. `group_reads.py` reads them from a
  cluster, a running query or a file; `monitor/rebalances/timeline.py` makes intervals of them; `layout.py` (pure)
  returns rows, colors and texts, which `altair_chart.py` or `svg.py` (pure) draws.
* `live.py` is `watch(...)`: a thread reads the group (`live_view.py`), and a widget of the notebook or `terminal.py`
  shows each view until the caller stops it.
* `group_scenario.py` (pure) runs the group coordinator step by step with a manual clock, and shows what has happened as
  a sequence diagram and a listing; `docs/protocol.md` and its notebook are made with it.

Altair, vl-convert and anywidget (extra `notebook`) are imported where they are used; without them the charts are plain
SVG and the live view is plain HTML.
"""

"""Groups seen from outside: tables, lag, rebalances and their causes.

It reads any cluster through `client`. It knows no reader process: `source` passes the events of its members in. It
knows no data frame: `tables/results.py` has rows and Arrow tables, and the notebook, the command line and Spark
show them.

* `offsets`: what is committed and where logs end (`offsets/cluster_reads.py`), lag (`offsets/lag.py`, pure), plans
  of resets, entries of `__consumer_offsets` (`offsets/offsets_log.py`).
* `rebalances`: rebalances with cause, actor, phases and effect. Three sources yield one form of event, `GroupEvent`:

  - the embedded coordinator records events (`rebalances/event_sources.py`), exact;
  - this package's own members report theirs in the metadata of their commits (`rebalances/group_history.py` reads
    them), exact for their own actions;
  - the history in `__consumer_offsets` of any Kafka (`rebalances/history_events.py`, causes by
    `rebalances/cause_rules.py` and `rebalances/departures.py`; groups with epochs: `rebalances/epoch_history.py`).

  `rebalances/event_rebalances.py` reduces them to rebalances: the events of one rebalance
  (`rebalances/observations.py`), then each value from the most exact source. `rebalances/rebalance_sources.py` reads
  all sources of a group. `rebalances/findings.py` is a table of rules over the result, `rebalances/explanation.py` has
  the sentences, `rebalances/timeline.py` the picture.
* `tables`: names, types and descriptions of columns (`tables/definitions.py`), their rows (`tables/table_rows.py`),
  columns of lag that need further requests (`tables/estimates.py`), expressions that select rows
  (`tables/row_filter.py`). Records of a topic for people: `tables/peek.py`, their keys and values
  `tables/record_decoding.py`.

A table is read from top to bottom: `table_rows` selects groups and topics (`selection.py`), `cluster_reads` sends
one request for many of them, pure functions compute, `results` (notebook) or `arrow_tables` (Spark) returns rows.
"""

"""Groups seen from outside: tables, lag, rebalances and their causes.

It reads any cluster through `client`. It knows no reader process: `source` passes the events of its members in. It
knows no data frame: `tables/results.py` has rows and Arrow tables, and the notebook, the command line and Spark
show them.

* `offsets`: what is committed and where logs end (`offsets/cluster_reads.py`), lag (`offsets/lag.py`, pure), plans
  of resets, entries of `__consumer_offsets` (`offsets/offsets_log.py`).
* `rebalances`: rebalances with cause, actor, phases and effect, from three kinds of sources:

  - events of the embedded coordinator, exact (`rebalances/event_rebalances.py`);
  - reports of this package's own members, in the metadata of their commits (`rebalances/application_reports.py`);
  - the history in `__consumer_offsets` of any Kafka (`rebalances/cause_rules.py`, with `rebalances/departures.py`).

  `rebalances/rebalance_merge.py` takes from each field the source that knows it best. `rebalances/findings.py` is a
  table of rules over the result, `rebalances/explanation.py` has the sentences, `rebalances/timeline.py` the
  picture.
* `tables`: names, types and descriptions of columns (`tables/definitions.py`), their rows (`tables/table_rows.py`).

A table is read from top to bottom: `table_rows` selects groups and topics (`selection.py`), `cluster_reads` sends
one request for many of them, pure functions compute, `results` returns rows.
"""

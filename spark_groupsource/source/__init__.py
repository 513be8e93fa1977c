"""Source and sink: what Spark calls, and the group member that answers.

It knows Spark's interface for Python data sources, the options, and the offsets in a checkpoint. It reaches brokers
through `client` only, and decodes no bytes itself: it passes record batches from `client` to `records` and `values`,
and the other way. The forms of commit metadata and of rebalance events are those of `wire`.
`process/embedded_address.py` alone knows that there is an embedded broker.

Processes
=========

* Spark looks the source up and plans batch reads in Python processes of its own (`spark/datasource.py`).
* One **reader process** for each source of a query runs on the driver's machine (`process/reader_process.py`). It
  has the members of the group, and answers Spark's callbacks on one thread. Over its control socket
  (`process/control_socket.py`, client `control_client.py`) the driver drains it, and readers of one group coordinate.
* **Write tasks** run on executors; `sink` is their page. What a query publishes exactly once, its reader processes add
  their offsets to, over their control sockets.
* **Read tasks** run on executors (`tasks/task_reader.py`). They share nothing with the reader process but what
  their input partition carries (`tasks/task_partition.py`).

A micro-batch
=============

1. Spark calls `latestOffset(start)` (`spark/stream_reader.py`), which ends in `session.py`. Spark has written
   everything before `start` to its checkpoint, so the session commits `start`.
2. It polls the group (`client/membership/group_client.py`): partitions are revoked and assigned here and nowhere else.
   Positions of a new assignment follow from checkpoint, committed offset and `startingOffsets`
   (`group/start_positions.py`).
3. It plans the end offsets within the limits (`positions/batch_planner.py`) and returns them as JSON
   (`positions/offset_json.py`). The end offset alone is enough to read the batch again.
4. Spark logs the end offset and calls `partitions(start, end)`: one input partition for each member with records, or
   more by the options `minPartitions` and `maxRecordsPerPartition`.
5. Each task sends heartbeats for its member while it reads, and fails when the coordinator rejects one. It reads
   exactly its planned range, or raises.
6. Spark writes the output of the sink and its commit log, and calls `latestOffset` again.

What follows from this
======================

* A batch is committed one call late, never early: a commit proves that Spark has the batch. A query that writes exactly
  once is the exception: the transaction of the output has the offsets of the batch (`sink`).
* A rebalance waits for the running batch, because the group is polled between batches only.
* Whatever ends the query between two steps leaves a checkpoint and a committed offset that differ by at most one
  batch; `positions/position_decisions.py` decides which of them holds.

`options` parses what the user writes; `spark`, `sink`, `process`, `session.py`, `group`, `tasks` and `positions` are
layers in this order.
"""

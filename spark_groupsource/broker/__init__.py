"""The embedded broker: Kafka's protocol, logs, group and transaction coordinators.

It knows requests, partitions and files. It knows nothing of Spark, and never imports `client` or `source`; both
meet it over the protocol. `group` and `transactions` are pure: time and ids are arguments.

A request
=========

1. `network/listener.py` accepts a connection; `network/client_connection.py` reads frames. One thread runs
   everything. `network/limits.py` bounds what a client may hold.
2. `api/dispatch.py` decodes the request and finds its handler in the table of `api/served_versions.py`; what is not
   in the table is not advertised.
3. It checks permissions (`api/authorization.py`) before it calls the handler, which answers from metadata, partitions
   or a coordinator. What takes long is a coroutine, which pauses (`common/coroutines.py`), so that other clients wait a
   few milliseconds at most. `network/response_router.py` makes a task of it if it does not end in its first time slice.
4. The response goes back to the connection by its token, at once or later (`fetch/delayed_fetch.py`, JoinGroup).

A group request
===============

`coordinators/group_runtime.py` gives it to the shard of its partition of `__consumer_offsets`
(`group/group_shard.py`). The shard decides and returns an `Outcome`: records, responses, timers, log lines. The
runtime sets the timers, appends the records, informs the shard that they are stored, and then sends the responses; that
of a request about offsets it returns, so that the handler adds what the coordinator did not get. So a restart that
replays the log has every state that a client has seen. Transactions work alike
(`coordinators/transaction_runtime.py`, `transactions/transaction_shard.py`).

A record
========

`api/produce_requests.py` validates the batches (`storage/log_validator.py`) and appends them to a
`storage/partition.py`, which keeps producers, transactions and the last stable offset beside its `storage/log.py`.
Files are Kafka's: segments, indexes, checkpoints. `fetch` reads them. `storage/cleaner.py` compacts. After a crash,
`storage/log_loader.py` reads what was not flushed, and truncates the log at its first invalid bytes.
"""

"""Kafka's protocol as bytes: messages, frames, SASL, coordinator records (pure).

It knows every field of every version of a message, and no socket, clock, partition or group: `client` and `broker` call
it with messages and get bytes, or with bytes and get messages. It alone imports files of kafka-python.

A message
=========

1. `schemas.py` reads Kafka's schema of a message as plain data. `messages.py` builds its class at the first use
   (`message_base.py`); one class serves all versions. Type checkers read `messages.pyi`, which is generated.
2. `apis.py` is the table of APIs and of the versions that both sides can use; `versions.py` negotiates one of them.
3. `encoder.py` and `decoder.py` generate a function for each class and version, with one statement for each run of
   fields (`generated_source.py`). A process compiles the few functions that it uses.
4. `frames.py` adds length and header. Sizes are checked before memory is allocated, and a decoder raises
   `RemoteProtocolError` for whatever bytes it does not accept. A broker ignores bytes behind a request, as Kafka does;
   a client rejects them behind a response.

Record sets in a message are views of the frame: no record is decoded or copied here (`spark_groupsource.records`).

What members and coordinators store
===================================

* `consumer_protocol.py`: subscriptions and assignments within JoinGroup and SyncGroup.
* `group_records.py`, `transaction_records.py`: keys and values in `__consumer_offsets` and
  `__transaction_state`; `record_json.py` prints them, and those of modern groups, as Kafka's tools do.
* `group_events.py`, `member_reasons.py`, `commit_reports.py`: this project's own forms, of events of rebalances, of
  reasons (KIP-800) and of the metadata of a commit. They are here because broker, client and tables share them.
* `sasl_client.py`, `sasl_server.py`: the two sides of a login, without the connection.
"""

"""Kafka client: connections, cluster metadata, group membership, fetcher, producer, admin.

It knows addresses, leaders, coordinators, generations and offsets. It knows no query, checkpoint or table: `source`,
`monitor` and `cli` call it. It never imports `broker`; both use the messages of `wire`. A call blocks its thread until
a result or, after its timeout, an error; only a fetch waits for as long as its caller allows (`network/outage.py`).

`network` has connections, `settings.py` the settings as a table, `cluster` the way to the right broker, `records` the
records of partitions, `membership` the members of a group, `admin.py` what tools need. Each uses those before it.

A request
=========

1. `cluster/cluster_client.py` builds the message of an operation (`cluster/leader_requests.py`,
   `cluster/group_offsets.py`) and names the table of error codes that are retried (`cluster/error_rules.py`).
2. `cluster/routing.py` finds the broker: a leader in the metadata, the coordinator of a group, or any broker. It caches
   both, drops what an error disproves, and retries (`network/retry.py`): requests to leaders in `ClusterClient`, those
   to a coordinator in `Router.call_coordinator_each`.
3. `network/connection_pool.py` has an idle connection or a new one. `network/broker_connection.py` opens it
   (`network/security.py`), negotiates the version, sends the frame of `wire` and receives the response.
4. The response returns the same way; each step handles the errors of its own.

A commit
========

1. `membership/group_client.py` divides the offsets among the members that own the partitions.
2. `membership/member_commits.py` sends those of each member in its generation: requests as above that do not wait for
   each other (`ClusterClient.commit_each`).
3. It interprets a rejection: the member commits in its next generation, or it is fenced.
4. The last commits are repeated (`membership/commit_repetition.py`) after a request without a response, because the
   coordinator may receive it after a later one, and after each loss of the coordinator, because what it has
   acknowledged may be lost with it.

A rebalance
===========

1. An event loop for all members of the process (`membership/member_loop.py`) executes what the pure
   `membership/state_machine.py` decides (`membership/member_task.py`): JoinGroup, SyncGroup, Heartbeat, over shared
   connections (`membership/group_connections.py`, `network/request_pipeline.py`).
2. The leader runs the assignor (`membership/assignment.py`).
3. The owner of the members gets the new partitions in its next `GroupClient.poll`, and nowhere else.

`membership` states which thread may use which field under which lock.

A record
========

`records/fetcher.py` sends one Fetch for each leader of planned ranges; `records/partition_fetch.py` checks what one
partition returned. The bytes of whole record batches go to `spark_groupsource.records` without a copy.

The other way, `records/producer.py` gets encoded batches, adds producer id and sequence, and sends them to the leaders;
`records/transactions.py` has the steps of a transaction.
"""

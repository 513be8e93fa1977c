"""Client side of the classic group protocol: members, rebalances, commits, heartbeats.

The event loop
==============

The members of one process share one thread with an asyncio event loop (`member_loop`). A member is a pure state machine
(`state_machine`); the loop asks it for its next action when the action is due or another thread has changed the member,
and a task executes it (`member_task`). asyncio serves best: a rebalance waits for responses, times, threads and other
members, which are its futures, and read tasks and commits remain plain blocking calls.

Connections are a resource of the process, not of a member (`group_connections`). A broker processes one request of a
connection at a time (SocketServer mutes the channel until the response is sent), so:

* requests that the coordinator responds to at once share one connection, one after the other without waiting:
  Heartbeat, and the first JoinGroup of a dynamic member, which is rejected with its member id (KIP-394);
* a JoinGroup or SyncGroup that waits for other members has a connection of its own for that time. It is kept for the
  rebalances that follow, and closed when it was idle for 30 seconds. A single member sends one request after the
  other and needs none.

What blocks runs in daemon threads (`blocking_calls`): the lookup of the coordinator, opening of a connection with TLS
and SASL, the check of a coordinator that delays a response, assignors, repeated commits. So heartbeats are sent in
time whatever else waits. They are spread over the interval (`MemberConfig.heartbeat_offset_ms`).

Commits and LeaveGroup are calls of the owner's thread over the pool of the `Router`: one OffsetCommit for each member,
sent without waiting for the response to the one before (`BrokerConnection.call_each`), and one LeaveGroup for all.

The lock rule
=============

Threads:

* The **owner's thread** calls `GroupClient`; one call at a time. Partitions change in its `poll` and `leave` only,
  and listeners and `Assignor.on_assignment` run in it.
* The **thread of the event loop** (`MemberLoop`) sends JoinGroup, SyncGroup and Heartbeat of all members. It never
  waits for anything but the lock and its sockets.
* **Threads of blocking calls** exist while such a call runs; they share what the call is given.
* A **task heartbeat thread** (`TaskHeartbeat`, on executors) shares nothing with the others.

Locks:

* `SharedMembership.changed`, one condition per process and group, guards every field of `SharedMembership`, of
  `Membership`, and `failure`, `commits` and `topic_ids` of `LocalMember`. The event loop notifies it for the owner's
  thread, at most every 10 ms; `SharedMembership.wake` lets the event loop look at the members. While the lock is held,
  no request is sent, no response is awaited, no other lock is taken, and no user code runs.
* `Router` guards its caches with one lock, `ConnectionPool` its connections with another; nothing blocks under either,
  and neither is taken under the other. Concurrent lookups of one coordinator wait for the first of them, so that one
  request is sent.

* `MemberCommits` sends the OffsetCommit requests of one call at a time, under its own lock: a repetition must not
  arrive after a later commit. The owner's thread waits for it, a repetition does not. `changed` may be taken under
  it.

Fields without a lock:

* `MemberTask`, `MemberRequests`, `GroupConnections` and `RequestPipeline` belong to the thread of the event loop. Their
  methods that run as blocking calls read what never changes; the rest they get as arguments, or use under `changed`.
* `Membership.owned` and `SharedMembership.topics` are written by the owner's thread only, which may read them without
  the lock. Log prefixes read the generation without it: a log line may show the previous one.
* `LocalMember.last_assigned` and `last_generation_id` are written by the owner's thread between `Membership.complete`
  and `Membership.prepare`, when the member cannot join and so does not use them.

`membership_values`, `commit_repetition`, `state_machine`, `response_rules` and `rebalance_log` take no lock: the
callers of this package hold `changed`.
"""

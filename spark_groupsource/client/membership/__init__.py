"""Client side of the classic group protocol: members, rebalances, commits, heartbeats.

The lock rule
=============

Threads:

* The **owner's thread** calls `GroupClient`; one call at a time. Partitions change in its `poll` and `leave` only, and
  listeners and `Assignor.on_assignment` run in it.
* Each **member thread** (`MemberThread`) sends JoinGroup, SyncGroup and Heartbeat of one member.
* An **assignment thread** exists while a group leader runs its assignor; its member thread sends heartbeats meanwhile.
* A **task heartbeat thread** (`TaskHeartbeat`, on executors) shares nothing with the other three.

Locks:

* `SharedMembership.changed`, one condition per process and group, guards every field of `SharedMembership`, of
  `Membership`, and `LocalMember.failure`. It is notified after each change for which another thread may wait. While it
  is held, no request is sent, no response is awaited, no other lock is taken, and no user code runs.
* `Router` guards its caches with one lock, `ConnectionPool` its connections with another; nothing blocks under either,
  and neither is taken under the other. Concurrent lookups of one coordinator wait for the first of them, so that one
  request is sent.

* `MemberCommits` sends one OffsetCommit of the process at a time, under its own lock: a repetition must not arrive
  after a later commit. The owner's thread waits for it, a member thread does not. `changed` may be taken under it.

Fields without a lock:

* `CoordinatorConnection` belongs to the member thread. Another thread may call its `abort` only, which ends a pending
  read or write.
* `Membership.owned` and `SharedMembership.topics` are written by the owner's thread only, which may read them without
  the lock. Log prefixes read the generation without it: a log line may show the previous one.
* `LocalMember.last_assigned` and `last_generation_id` are written by the owner's thread between `Membership.complete`
  and `Membership.prepare`, when the member thread cannot join and so does not use them.

`membership_values`, `commit_repetition`, `state_machine`, `response_rules` and `rebalance_log` take no lock: the
callers of this package hold `changed`.
"""
